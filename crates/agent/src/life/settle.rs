//! What one life stands on: the network's config, the interface, the range.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_kernel::{Host, Mac};
use podwire_overlay::{Preference, Uplink, VtepMac, Vxlan, Watch};
use podwire_subnets::{Node, Registration, Source, SubnetEnv, Tenure};
use tracing::info;

use super::{ranges, uplink_text, Ground, Life};
use crate::backend::Backend;
use crate::{plan, roads, Error, Result};

impl Life {
    /// The config, the interface, the range.
    pub(super) async fn settle(&mut self) -> Result<Ground> {
        let conf = self.source.network().await?;
        let mut backend = Backend::read(&conf, &self.settings)?;
        let mut host = Host::here()?;
        let (preference, known_as) = self.preference().await?;
        self.ears = Some(Watch::for_uplinks(&mut host)?);
        let uplinks = roads::uplinks(&mut host, &preference, &conf)?;
        self.ears = None;
        self.doubt(&uplinks, &known_as).await;
        let previous = SubnetEnv::read(&self.settings.subnet_file)?.unwrap_or_default().ranges();
        // What the command of the backend `extension` says of this node.
        let told = match &backend {
            Backend::Extension(extension) => {
                let data = extension.prepare()?;
                podwire_subnets::Backend { kind: "extension".into(), data_v6: data.clone(), data }
            }
            _ => podwire_subnets::Backend::default(),
        };
        let registration =
            |backend: &Backend| plan::registration(&self.settings, backend, &uplinks, &[], (previous, &told));
        if let Backend::Vxlan(vxlan) = &mut backend {
            let asked = registration(&Backend::Vxlan(vxlan.clone()));
            vxlan.mac = self.vtep_mac(&mut host, vxlan, &asked).await?;
        }
        let registration = registration(&backend);
        let own = self.acquire(&registration).await?;
        info!(node = own.name, ranges = %ranges(&own).join(" "), backend = conf.backend_type, "this node's range");
        if let Backend::Extension(extension) = &backend {
            extension.begin(&own, &conf)?;
        }
        let mut status = self.board.write();
        status.backend.clone_from(&conf.backend_type);
        status.ranges = ranges(&own);
        status.uplinks = uplinks.iter().map(uplink_text).collect();
        drop(status);
        self.metrics.range_addresses.set(addresses(&own));
        self.guard(&own, &uplinks)?;
        // What it asks for from now on, if it must ask again, is what it has.
        let registration = Registration { previous: own.ranges, ..registration };
        Ok(Ground { conf, backend, preference, uplinks, registration, own, news: None })
    }

    /// The MAC of the tunnel's end: the one that the others know, or the device's that is there, or one made from its name.
    async fn vtep_mac(&self, host: &mut Host, vxlan: &Vxlan, asked: &Registration) -> Result<VtepMac> {
        let remembered = match self.settings.derived_mac {
            true => None,
            false => self.source.remembered(asked).await?,
        };
        let mut mac = |v4: bool| -> Result<Mac> {
            let told = remembered.as_ref().and_then(|node| match v4 {
                true => node.backend.vtep(),
                false => node.backend.vtep_v6(),
            });
            let told = told.and_then(|vtep| vtep.mac.parse::<Mac>().ok()).filter(Mac::is_usable);
            let name = vxlan.device(v4);
            let mut there =
                || Ok::<_, Error>(host.find_link(&name)?.and_then(|link| link.mac_text().parse().ok()));
            let derived = || Mac::of(&format!("{name} on {}", self.settings.node_name));
            Ok(match (told, self.settings.derived_mac) {
                (Some(told), _) => told,
                (None, false) => there()?.unwrap_or_else(derived),
                (None, true) => derived(),
            })
        };
        Ok(VtepMac::Told { v4: Some(mac(true)?), v6: Some(mac(false)?) })
    }

    /// What was said about the interface, here and in the cluster; and by which addresses the cluster knows this node.
    async fn preference(&self) -> Result<(Preference, Vec<IpAddr>)> {
        let mut preference = self.settings.preference.clone();
        let Source::Kubernetes(kubernetes) = &self.source else { return Ok((preference, Vec::new())) };
        let (wished, internal) = kubernetes.own_addresses().await?;
        let wished = wished.v4.map(IpAddr::V4).into_iter().chain(wished.v6.map(IpAddr::V6));
        let said = preference.known_as.iter().copied();
        preference.known_as = wished.chain(said).chain(internal.iter().copied()).collect();
        Ok((preference, internal))
    }

    /// The cluster knows this node by an address at which it does not meet the others. It may be meant so (an interface was
    /// named, a router translates); if it is not, half of the cluster does not work.
    async fn doubt(&mut self, uplinks: &[Uplink], known_as: &[IpAddr]) {
        for Uplink { name, address, .. } in uplinks {
            let mut alike = known_as.iter().filter(|ip| ip.is_ipv4() == address.is_ipv4()).peekable();
            if alike.peek().is_some() && !alike.clone().any(|ip| ip == address) {
                let known: Vec<String> = alike.map(ToString::to_string).collect();
                let text = format!(
                    "the cluster knows this node by {} (InternalIP), but it meets the others at {address} of {name}: \
                     if that is not meant, name the interface (--iface) or the address (--public-ip)",
                    known.join(", ")
                );
                self.tell("InterfaceAmbiguous", &text).await;
            }
        }
    }

    /// Who has an address of this node's range is a pod: it is silent until its policies are known.
    fn guard(&self, own: &Node, uplinks: &[Uplink]) -> Result<()> {
        let Some(policy_agent) = &self.policy_agent else { return Ok(()) };
        let addresses = uplinks.iter().map(|uplink| uplink.address).collect();
        Ok(policy_agent.set_networks(own.ranges.iter().collect(), addresses)?)
    }

    /// Asks for this node's range.
    ///
    /// flannel's etcd knows a node by its address: under another one it would be a second node beside itself, with another range.
    /// What it had is given back, and asked for again at once. A reservation is an operator's, and stays.
    async fn acquire(&mut self, registration: &Registration) -> Result<Node> {
        let has_moved = |own: &&Node| own.underlay.v4 != registration.underlay.v4;
        let former = self.own.as_ref().filter(has_moved).filter(|own| own.tenure != Tenure::Lasting);
        if let (Some(former), Source::Etcd(_)) = (former, &self.source) {
            self.source.release(former).await?;
        }
        let own = self.source.acquire(registration).await?;
        self.own = Some(own.clone());
        Ok(own)
    }

    pub(super) async fn register(&mut self, ground: &mut Ground, registration: Registration) -> Result<()> {
        let own = self.acquire(&registration).await?;
        info!(node = own.name, "told the others what has changed here");
        ground.registration = registration;
        ground.own = own;
        Ok(())
    }
}

fn addresses(node: &Node) -> f64 {
    let size = |range: IpNet| match range.network() {
        IpAddr::V4(_) => f64::from(32 - range.prefix_len()).exp2(),
        IpAddr::V6(_) => f64::from(128 - range.prefix_len()).exp2(),
    };
    node.ranges.iter().map(size).sum()
}

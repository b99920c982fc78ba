//! Setting up a node's network: the config, the uplinks, the pod CIDR.

use std::net::IpAddr;

use podwire_ip::IpFamily;
use podwire_kernel::{Host, Mac};
use podwire_overlay::{Uplink, UplinkPreference, VtepMac, Vxlan, Watch};
use podwire_subnets::{LeaseTerm, Node, Registration, Source, SubnetEnv};
use tracing::info;

use super::{pod_cidrs, uplink_text, Daemon, NodeNetwork};
use crate::flannel::backend::Backend;
use crate::flannel::registration::Facts;
use crate::flannel::routes;
use crate::Result;

impl Daemon {
    /// Reads the config, chooses the uplinks and acquires the pod CIDR.
    pub(super) async fn set_up(&mut self) -> Result<NodeNetwork> {
        let conf = self.source.network().await?;
        let mut backend = Backend::read(&conf, &self.settings)?;
        let mut host = Host::here()?;
        let (preference, internal_ips) = self.preference().await?;
        self.link_watch = Some(Watch::for_uplinks(&mut host)?);
        let uplinks = routes::uplinks(&mut host, &preference, &conf)?;
        self.link_watch = None;
        self.report_other_address(&uplinks, &internal_ips).await;
        let previous = SubnetEnv::read(&self.settings.subnet_file)?.unwrap_or_default().pod_cidrs();
        let extension_data = match &backend {
            Backend::Extension(extension) => {
                let data = extension.pre_startup_data()?;
                podwire_subnets::Backend { kind: "extension".into(), data_v6: data.clone(), data }
            }
            _ => podwire_subnets::Backend::default(),
        };
        let registration = |backend: &Backend| {
            let (settings, uplinks, extension_data) = (&self.settings, &uplinks, &extension_data);
            Facts { settings, backend, uplinks, devices: &[], previous, extension_data }.registration()
        };
        if let Backend::Vxlan(vxlan) = &mut backend {
            let requested = registration(&Backend::Vxlan(vxlan.clone()));
            vxlan.mac = self.vtep_mac(&mut host, vxlan, &requested).await?;
        }
        let registration = registration(&backend);
        let own = self.acquire(&registration).await?;
        info!(node = own.name, pod_cidrs = %pod_cidrs(&own).join(" "), backend = conf.backend_type, "pod CIDR acquired");
        if let Backend::Extension(extension) = &backend {
            extension.run_post_startup(&own, &conf)?;
        }
        let mut status = self.status.lock();
        status.backend = Some(conf.backend_type.clone());
        status.pod_cidrs = pod_cidrs(&own);
        status.uplinks = uplinks.iter().map(uplink_text).collect();
        drop(status);
        self.guard(&own, &uplinks)?;
        // A later registration asks for the pod CIDR that the node has now.
        let registration = Registration { previous: own.pod_cidrs, ..registration };
        Ok(NodeNetwork { conf, backend, preference, uplinks, registration, own, changed_at: None })
    }

    /// The MAC addresses of the VXLAN devices: the registered one, or that of the existing device, or one derived from
    /// its name.
    async fn vtep_mac(&self, host: &mut Host, vxlan: &Vxlan, requested: &Registration) -> Result<VtepMac> {
        let is_derived = self.settings.derived_mac;
        let registered = if is_derived { None } else { self.source.find_previous(requested).await? };
        let mut mac = |family: IpFamily| -> Result<Mac> {
            let vtep = registered.as_ref().and_then(|node| match family {
                IpFamily::V4 => node.backend.vtep(),
                IpFamily::V6 => node.backend.vtep_v6(),
            });
            let known = vtep.and_then(|vtep| vtep.mac.parse::<Mac>().ok()).filter(Mac::is_usable);
            if let Some(known) = known {
                return Ok(known);
            }
            let name = vxlan.device(family);
            let existing = if is_derived { None } else { host.find_link(&name)? };
            let existing = existing.and_then(|link| link.mac_text().parse().ok());
            Ok(existing.unwrap_or_else(|| Mac::of(&format!("{name} on {}", self.settings.node_name))))
        };
        Ok(VtepMac::Registered { v4: Some(mac(IpFamily::V4)?), v6: Some(mac(IpFamily::V6)?) })
    }

    /// The preferred uplink of the settings and of the node's annotations, and the node's InternalIPs in Kubernetes.
    async fn preference(&self) -> Result<(UplinkPreference, Vec<IpAddr>)> {
        let mut preference = self.settings.preference.clone();
        let Source::Kubernetes(kubernetes) = &self.source else { return Ok((preference, Vec::new())) };
        let (annotated, internal) = kubernetes.own_addresses().await?;
        let annotated = annotated.v4.map(IpAddr::V4).into_iter().chain(annotated.v6.map(IpAddr::V6));
        let configured = preference.node_addresses.iter().copied();
        preference.node_addresses = annotated.chain(configured).chain(internal.iter().copied()).collect();
        Ok((preference, internal))
    }

    /// Reports an uplink whose address is not the node's InternalIP. That may be intended (a chosen interface, NAT); if
    /// it is not, half of the cluster does not work.
    async fn report_other_address(&mut self, uplinks: &[Uplink], internal_ips: &[IpAddr]) {
        for Uplink { name, address, .. } in uplinks {
            let family = IpFamily::of(*address);
            let mut same_family = internal_ips.iter().filter(|ip| IpFamily::of(**ip) == family).peekable();
            if same_family.peek().is_some() && !same_family.clone().any(|ip| ip == address) {
                let known: Vec<String> = same_family.map(ToString::to_string).collect();
                let text = format!(
                    "the node's InternalIP is {}, but it reaches the other nodes from {address} of {name}: \
                     if that is not intended, set the interface (--iface) or the address (--public-ip)",
                    known.join(", ")
                );
                self.report_once("InterfaceAmbiguous", &text).await;
            }
        }
    }

    /// Makes the policy agent drop the traffic of addresses of this node's pod CIDR until their policies are known. Sets
    /// the networks of this node's pods for the Services.
    fn guard(&self, own: &Node, uplinks: &[Uplink]) -> Result<()> {
        if let Some(services) = &self.services {
            services.set_pod_networks(own.pod_cidrs.iter().collect())?;
        }
        let Some(policy_agent) = &self.policy_agent else { return Ok(()) };
        let addresses = uplinks.iter().map(|uplink| uplink.address).collect();
        Ok(policy_agent.set_networks(own.pod_cidrs.iter().collect(), addresses)?)
    }

    /// Acquires this node's pod CIDR.
    ///
    /// flannel's etcd identifies a node by its address: with another address it would be a second node with another pod
    /// CIDR. So the old lease is released first and its CIDR is requested again. A reservation belongs to an operator
    /// and stays.
    async fn acquire(&mut self, registration: &Registration) -> Result<Node> {
        let has_moved = |own: &&Node| own.underlay.v4 != registration.underlay.v4;
        let former = self.own.as_ref().filter(has_moved).filter(|own| own.lease_term != LeaseTerm::Permanent);
        if let (Some(former), Source::Etcd(_)) = (former, &self.source) {
            self.source.release(former).await?;
        }
        let own = self.source.acquire(registration).await?;
        self.own = Some(own.clone());
        Ok(own)
    }

    pub(super) async fn register(
        &mut self,
        network: &mut NodeNetwork,
        registration: Registration,
    ) -> Result<()> {
        let own = self.acquire(&registration).await?;
        info!(node = own.name, "registered again: the address or the key changed");
        network.registration = registration;
        network.own = own;
        Ok(())
    }
}

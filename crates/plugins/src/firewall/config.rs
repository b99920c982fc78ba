//! The config of the firewall plugin.

use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::Attachment;
use podwire_kernel::firewall::forward::{Policy, Rules};
use serde::Deserialize;

use super::firewalld::{self, Firewalld};

/// `NFT_NAME_MAXLEN` of linux/netfilter/nf_tables.h, without the final NUL.
const MAX_CHAIN_NAME: usize = 255;
/// More than firewalld allows for a zone's name, and short enough for a D-Bus message.
const MAX_ZONE_NAME: usize = 255;

/// The keys of the config.
pub(super) const CONFIG_KEYS: &[&str] =
    &["backend", "firewalldZone", "ingressPolicy", "iptablesAdminChainName"];

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Conf {
    backend: Option<String>,
    firewalld_zone: Option<String>,
    iptables_admin_chain_name: Option<String>,
    ingress_policy: Option<String>,
}

/// What accepts the pod's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    /// firewalld if it runs, else Podwire's rules.
    Automatic,
    /// firewalld.
    Firewalld,
    /// Podwire's nftables rules, also for the backend `iptables`.
    Nftables,
}

impl Conf {
    /// Reads the config and checks what does not depend on a pod.
    pub fn read(req: &Request<'_>) -> Result<Conf> {
        let conf: Conf = req.config()?;
        if conf.known_backend().is_none() {
            let name = conf.backend.as_deref().unwrap_or_default();
            return invalid(format!("backend: unrecognized firewall backend type {name:?}"));
        }
        let zone = conf.zone();
        if zone.len() > MAX_ZONE_NAME || zone.contains('\0') {
            return invalid(format!("firewalldZone: {zone:?} is not the name of a zone"));
        }
        conf.policy()?;
        conf.admin_chain()?;
        Ok(conf)
    }

    /// Reads the config for DEL, which must succeed even if the config is invalid.
    pub fn read_or_default(req: &Request<'_>) -> Conf {
        req.config().unwrap_or_default()
    }

    fn known_backend(&self) -> Option<Backend> {
        match self.backend.as_deref() {
            None | Some("") => Some(Backend::Automatic),
            Some("firewalld") => Some(Backend::Firewalld),
            Some("iptables" | "nftables") => Some(Backend::Nftables),
            Some(_) => None,
        }
    }

    /// What accepts the pod's packets.
    pub fn backend(&self) -> Backend {
        self.known_backend().unwrap_or(Backend::Automatic)
    }

    /// The firewalld zone of the network's pods.
    pub fn zone(&self) -> &str {
        self.firewalld_zone.as_deref().filter(|zone| !zone.is_empty()).unwrap_or("trusted")
    }

    /// The connection to firewalld, if it is the backend.
    pub fn firewalld(&self) -> Result<Option<Firewalld<'_>>> {
        match self.backend() {
            Backend::Nftables => Ok(None),
            Backend::Automatic => Ok(Firewalld::find(self.zone())),
            Backend::Firewalld => match Firewalld::connect(self.zone()) {
                Ok(firewalld) => Ok(Some(firewalld)),
                Err(error) => Err(firewalld::failure("connect to firewalld".into(), &error).into()),
            },
        }
    }

    /// The rules for all pods of the network.
    pub fn rules(&self, prev: &Attachment) -> Result<Rules> {
        let bridge = prev.interfaces.first().map(|interface| interface.name.clone());
        let policy = self.policy()?;
        if bridge.is_none() && policy != Policy::Open {
            let text = format!(
                "interface needs to be set for ingress policy {:?}, make sure to chain \"firewall\" plugin with \
                 \"bridge\"",
                self.ingress_policy.as_deref().unwrap_or_default()
            );
            let hint = "ingressPolicy: prevResult lists no interface, so there is no bridge to isolate";
            return Err(podwire_cni_spec::Error::invalid_config(text).with_hint(hint).into());
        }
        Ok(Rules { admin_chain: self.admin_chain()?, policy, bridge })
    }

    fn policy(&self) -> Result<Policy> {
        match self.ingress_policy.as_deref() {
            None | Some("" | "open") => Ok(Policy::Open),
            Some("same-bridge") => Ok(Policy::SameBridge),
            Some("isolated") => Ok(Policy::Isolated),
            Some(other) => {
                let error =
                    podwire_cni_spec::Error::invalid_config(format!("unknown ingress policy: {other:?}"));
                Err(error.with_hint("set ingressPolicy to open, same-bridge or isolated").into())
            }
        }
    }

    /// Whether the pods of the bridge are isolated from each other.
    pub fn isolates_pods(&self) -> bool {
        self.policy().is_ok_and(|policy| policy == Policy::Isolated)
    }

    fn admin_chain(&self) -> Result<String> {
        let name =
            self.iptables_admin_chain_name.as_deref().filter(|name| !name.is_empty()).unwrap_or("CNI-ADMIN");
        if name.len() > MAX_CHAIN_NAME || name.contains('\0') {
            let range = format!("1 to {MAX_CHAIN_NAME} bytes");
            return invalid(format!(
                "iptablesAdminChainName: {name:?} is not the name of a chain, which has {range}"
            ));
        }
        Ok(name.into())
    }
}

fn invalid<T>(text: String) -> Result<T> {
    Err(podwire_cni_spec::Error::invalid_config(text).into())
}

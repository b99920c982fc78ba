//! The config of the firewall plugin.

use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::Attachment;
use podwire_kernel::firewall::forward::{Policy, Rules};
use serde::Deserialize;

use super::firewalld::{self, Firewalld};

/// `NFT_NAME_MAXLEN` of linux/netfilter/nf_tables.h, without the final NUL.
const LONGEST_CHAIN: usize = 255;
/// Longer than firewalld lets a zone's name be, and short enough to be sent.
const LONGEST_ZONE: usize = 255;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Conf {
    backend: Option<String>,
    firewalld_zone: Option<String>,
    iptables_admin_chain_name: Option<String>,
    ingress_policy: Option<String>,
}

/// Who lets the pod's packets pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    /// firewalld if it runs, else our own rules.
    Whichever,
    /// firewalld.
    Firewalld,
    /// Our own rules, which stand for those of iptables too.
    Nftables,
}

impl Conf {
    /// Reads it, and checks what can be checked without a pod.
    pub fn read(req: &Request<'_>) -> Result<Conf> {
        let conf: Conf = req.config()?;
        if conf.known_backend().is_none() {
            let name = conf.backend.as_deref().unwrap_or_default();
            return invalid(format!("backend: unrecognized firewall backend type {name:?}"));
        }
        let zone = conf.zone();
        if zone.len() > LONGEST_ZONE || zone.contains('\0') {
            return invalid(format!("firewalldZone: {zone:?} is no zone's name"));
        }
        conf.policy()?;
        conf.admin_chain()?;
        Ok(conf)
    }

    /// As much of it as makes sense: nothing else is known any more to a DEL.
    pub fn read_loosely(req: &Request<'_>) -> Conf {
        req.config().unwrap_or_default()
    }

    fn known_backend(&self) -> Option<Backend> {
        match self.backend.as_deref() {
            None | Some("") => Some(Backend::Whichever),
            Some("firewalld") => Some(Backend::Firewalld),
            Some("iptables" | "nftables") => Some(Backend::Nftables),
            Some(_) => None,
        }
    }

    /// Who lets the pod's packets pass.
    pub fn backend(&self) -> Backend {
        self.known_backend().unwrap_or(Backend::Whichever)
    }

    /// The zone of firewalld that pods of this network are in.
    pub fn zone(&self) -> &str {
        self.firewalld_zone.as_deref().filter(|zone| !zone.is_empty()).unwrap_or("trusted")
    }

    /// firewalld, if it is the one who lets the pod's packets pass.
    pub fn firewalld(&self) -> Result<Option<Firewalld<'_>>> {
        match self.backend() {
            Backend::Nftables => Ok(None),
            Backend::Whichever => Ok(Firewalld::find(self.zone())),
            Backend::Firewalld => match Firewalld::at(self.zone()) {
                Ok(firewalld) => Ok(Some(firewalld)),
                Err(error) => Err(firewalld::failure("reach firewalld".into(), &error).into()),
            },
        }
    }

    /// What holds for all pods of the network.
    pub fn rules(&self, prev: &Attachment) -> Result<Rules> {
        let bridge = prev.interfaces.first().map(|interface| interface.name.clone());
        let policy = self.policy()?;
        if bridge.is_none() && policy != Policy::Open {
            let text = "ingressPolicy: the plugins before this one tell of no interface, whose bridge could be kept apart";
            return invalid(text.into());
        }
        Ok(Rules { admin_chain: self.admin_chain()?, policy, bridge })
    }

    fn policy(&self) -> Result<Policy> {
        match self.ingress_policy.as_deref() {
            None | Some("" | "open") => Ok(Policy::Open),
            Some("same-bridge") => Ok(Policy::SameBridge),
            Some("isolated") => Ok(Policy::Isolated),
            Some(other) => invalid(format!("ingressPolicy: {other:?} is not open, same-bridge or isolated")),
        }
    }

    fn admin_chain(&self) -> Result<String> {
        let name =
            self.iptables_admin_chain_name.as_deref().filter(|name| !name.is_empty()).unwrap_or("CNI-ADMIN");
        if name.len() > LONGEST_CHAIN || name.contains('\0') {
            let range = format!("1 to {LONGEST_CHAIN} bytes");
            return invalid(format!(
                "iptablesAdminChainName: {name:?} is no chain's name, which has {range}"
            ));
        }
        Ok(name.into())
    }
}

fn invalid<T>(text: String) -> Result<T> {
    Err(podwire_cni_spec::Error::invalid_config(text).into())
}

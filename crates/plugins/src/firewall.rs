//! firewall: lets the pod's packets through a node that forwards nothing by default, and keeps bridges apart.
//!
//! The pod's addresses become elements of sets; the rules that look into them stand once, behind a chain that
//! the administrator may fill. `ingressPolicy` keeps packets of one bridge from the pods of another.

use std::net::IpAddr;

use cni::{Attachment, Version};
use cni_plugin::{Context, Error, Plugin, Request, Result};
use kernel::firewall::forward::{self, Policy, Rules};
use kernel::firewall::legacy;
use kernel::{detached, Host};
use serde::Deserialize;

use crate::lease::hosts;
use crate::plumbing::differs;

/// `NFT_NAME_MAXLEN` of linux/netfilter/nf_tables.h, without the final NUL.
const LONGEST_CHAIN: usize = 255;

/// The plugin.
#[derive(Debug)]
pub struct Firewall;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    backend: Option<String>,
    iptables_admin_chain_name: Option<String>,
    ingress_policy: Option<String>,
}

impl Plugin for Firewall {
    fn name(&self) -> &'static str {
        "firewall"
    }

    fn about(&self) -> &'static str {
        "firewall: lets the pod's packets through the node's firewall, and keeps bridges apart"
    }

    fn versions(&self) -> &'static [Version] {
        Version::from(Version::V0_4_0)
    }

    fn add(&self, req: &Request<'_>) -> Result<Attachment> {
        let conf: Conf = req.config()?;
        let prev = req.chained()?;
        let rules = conf.rules(prev)?;
        let mut node = Host::here()?;
        forward::add(node.nft()?, &req.owner(), &addresses(prev), &rules)
            .doing(|| "let the pod's packets pass".into())?;
        detached::after_adding(&node);
        Ok(prev.clone())
    }

    fn del(&self, req: &Request<'_>) -> Result<()> {
        let mut node = Host::here()?;
        let (owner, nft) = (req.owner(), node.nft()?);
        let known = req.prev.as_ref().map(addresses);
        match &known {
            Some(addresses) => forward::remove(nft, &owner, addresses)?,
            None => forward::remove_all(nft, &owner)?,
        };
        legacy::remove(nft, &owner, &known.unwrap_or_default())?;
        detached::after_deleting(&node);
        Ok(())
    }

    fn check(&self, req: &Request<'_>) -> Result<()> {
        let conf: Conf = req.config()?;
        let recorded = req.recorded()?;
        conf.rules(recorded)?;
        let mut node = Host::here()?;
        for address in addresses(recorded) {
            if !forward::is_present(node.nft()?, &req.owner(), address)? {
                return Err(differs(format!("packets of {address} are not let through any more")));
            }
        }
        Ok(())
    }

    fn gc(&self, req: &Request<'_>) -> Result<()> {
        let (kept, mut node) = (req.kept_owners()?, Host::here()?);
        let mut errors: Vec<Error> = Vec::new();
        errors.extend(forward::collect(node.nft()?, &req.network, &kept).err().map(Error::from));
        errors.extend(legacy::collect(node.nft()?, &req.network, &kept).err().map(Error::from));
        Error::all(errors)
    }

    fn status(&self, req: &Request<'_>) -> Result<()> {
        let conf: Conf = req.config()?;
        conf.rules(&Attachment::default()).map(drop)
    }
}

fn addresses(result: &Attachment) -> Vec<IpAddr> {
    hosts(&result.ips.iter().map(|ip| ip.address).collect::<Vec<_>>())
}

fn invalid<T>(text: String) -> Result<T> {
    Err(cni::Error::invalid_config(text).into())
}

impl Conf {
    fn rules(&self, prev: &Attachment) -> Result<Rules> {
        if !matches!(self.backend.as_deref(), None | Some("" | "iptables" | "nftables")) {
            return invalid(format!("backend: unrecognized firewall backend type {:?}", self.backend));
        }
        let policy = match self.ingress_policy.as_deref() {
            None | Some("" | "open") => Policy::Open,
            Some("same-bridge") => Policy::SameBridge,
            Some("isolated") => Policy::Isolated,
            Some(other) => {
                return invalid(format!("ingressPolicy: {other:?} is not open, same-bridge or isolated"));
            }
        };
        let chain = self.iptables_admin_chain_name.clone().filter(|name| !name.is_empty());
        if let Some(name) = chain.as_ref().filter(|name| name.len() > LONGEST_CHAIN || name.contains('\0')) {
            let text = format!("iptablesAdminChainName: {name:?} is no chain's name, which has 1 to {LONGEST_CHAIN} bytes");
            return invalid(text);
        }
        let bridge = prev.interfaces.first().map(|interface| interface.name.clone());
        Ok(Rules { admin_chain: chain.unwrap_or_else(|| "CNI-ADMIN".into()), policy, bridge })
    }
}

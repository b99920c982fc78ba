//! `podwire ipam release`: releases addresses by hand.

use std::net::IpAddr;

use clap::Args;
use podwire_block_ipam::{CollectReport, Release as ReleaseRequest};
use serde_json::{json, Value};

use super::store_flags::{allocator, rules, StoreFlags};
use crate::failure::{Cause, Failure};
use crate::output::Output;

pub(super) const EXAMPLES: &str = "Examples:
  podwire ipam release --ip 10.244.1.5
  podwire ipam release --ip 10.244.1.5 --handle k8s-pod-network.4711    only if this handle has it
  podwire ipam release --handle k8s-pod-network.4711                    all addresses of the handle
  podwire ipam release --node worker-7                                  everything of a deleted node

The command does not check whether a pod uses the address: see `podwire ipam show --ip` first.";

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").args(["ip", "handle", "node"]).required(true).multiple(true))]
pub(crate) struct Release {
    /// Address to release.
    #[arg(long)]
    ip: Option<IpAddr>,
    /// Handle whose addresses to release; with --ip, the handle that must have the address.
    #[arg(long)]
    handle: Option<String>,
    /// Node whose addresses (pods, tunnels, warm pool) and blocks to release.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["ip", "handle"])]
    node: Option<String>,
    #[command(flatten)]
    store: StoreFlags,
}

const WHAT: &str = "cannot release addresses";

impl Release {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let store = self.store.open(WHAT, false)?;
        let (allocator, rules) = (allocator(&*store), rules(&*store, WHAT)?);
        if let Some(node) = &self.node {
            return of_node(allocator.release_node(&rules, node).map_err(Failure::context(WHAT))?, node);
        }
        let released: Vec<IpAddr> = match (self.ip, &self.handle) {
            (Some(ip), handle) => {
                let request = ReleaseRequest { handle: handle.clone(), ..ReleaseRequest::of(ip) };
                let unknown = allocator.release(&rules, &[request]).map_err(Failure::context(WHAT))?;
                if unknown.is_empty() {
                    vec![ip]
                } else {
                    Vec::new()
                }
            }
            (None, handle) => allocator
                .release_handle(&rules, handle.as_deref().unwrap_or_default())
                .map_err(Failure::context(WHAT))?,
        };
        let text = match released.as_slice() {
            [] => "nothing was in use\n".to_owned(),
            some => some.iter().map(|ip| format!("released {ip}\n")).collect(),
        };
        Ok(Output::new(text, json!({ "released": released })))
    }
}

fn of_node(collected: CollectReport, node: &str) -> Result<Output, Failure> {
    let CollectReport { leaks, nodes, errors, .. } = collected;
    let mut text: String =
        leaks.iter().map(|leak| format!("released {} of {}\n", leak.ip, leak.handle)).collect();
    errors.iter().for_each(|error| text += &format!("not released: {error}\n"));
    text += &if nodes.is_empty() {
        format!("{node} still has blocks: other nodes use addresses of them\n")
    } else {
        format!("{node} has no blocks any more\n")
    };
    let released: Vec<IpAddr> = leaks.iter().map(|leak| leak.ip).collect();
    let success = !nodes.is_empty() && errors.is_empty();
    let errors: Vec<Value> = errors.into_iter().map(|error| Cause::from(error).to_json()).collect();
    let json = json!({ "released": released, "node": node, "hasBlocks": nodes.is_empty(), "errors": errors });
    Ok(Output { text, json, success })
}

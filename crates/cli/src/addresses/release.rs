//! `podwire ipam release`: takes back what nobody else will.

use std::net::IpAddr;

use clap::Args;
use podwire_block_ipam::{CollectReport, Release as Wish};
use serde_json::json;

use super::place::{allocator, rules, Place};
use crate::{Answer, Failure};

pub(super) const EXAMPLES: &str = "Examples:
  podwire ipam release --ip 10.244.1.5
  podwire ipam release --ip 10.244.1.5 --handle k8s-pod-network.4711    only if it is still that one's
  podwire ipam release --handle k8s-pod-network.4711                    everything that it has
  podwire ipam release --node worker-7                                  everything of a node that is gone for ever

A pod that still uses the address is not asked: see `podwire ipam show --ip` first.";

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").args(["ip", "handle", "node"]).required(true).multiple(true))]
pub(crate) struct Release {
    /// This address.
    #[arg(long)]
    ip: Option<IpAddr>,
    /// The addresses of this handle; with --ip, the handle that must have it.
    #[arg(long)]
    handle: Option<String>,
    /// All that this node has: its pods' addresses, its tunnels', its stock, and its blocks.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["ip", "handle"])]
    node: Option<String>,
    #[command(flatten)]
    place: Place,
}

const WHAT: &str = "cannot release addresses";

impl Release {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let store = self.place.open(WHAT, false)?;
        let (allocator, rules) = (allocator(&*store), rules(&*store, WHAT)?);
        if let Some(node) = &self.node {
            return of_node(allocator.release_node(&rules, node).map_err(super::to(WHAT))?, node);
        }
        let released: Vec<IpAddr> = match (self.ip, &self.handle) {
            (Some(ip), handle) => {
                let wish = Wish { handle: handle.clone(), ..Wish::of(ip) };
                let unknown = allocator.release(&rules, &[wish]).map_err(super::to(WHAT))?;
                if unknown.is_empty() {
                    vec![ip]
                } else {
                    Vec::new()
                }
            }
            (None, handle) => allocator
                .release_handle(&rules, handle.as_deref().unwrap_or_default())
                .map_err(super::to(WHAT))?,
        };
        let text = match released.as_slice() {
            [] => "nothing was in use\n".to_owned(),
            some => some.iter().map(|ip| format!("released {ip}\n")).collect(),
        };
        Ok(Answer::new(text, json!({ "released": released })))
    }
}

fn of_node(collected: CollectReport, node: &str) -> Result<Answer, Failure> {
    let CollectReport { leaks, nodes, errors, .. } = collected;
    let mut text: String =
        leaks.iter().map(|leak| format!("released {} of {}\n", leak.ip, leak.handle)).collect();
    errors.iter().for_each(|error| text += &format!("left alone: {error}\n"));
    text += &match nodes.is_empty() {
        true => format!("{node} still has blocks: somebody uses an address of them\n"),
        false => format!("{node} has no blocks any more\n"),
    };
    let released: Vec<IpAddr> = leaks.iter().map(|leak| leak.ip).collect();
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let json = json!({ "released": released, "node": node, "hasBlocks": nodes.is_empty(), "errors": errors });
    Ok(Answer { text, json, success: !nodes.is_empty() && errors.is_empty() })
}

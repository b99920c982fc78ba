//! `podwire ipam release`: takes back what nobody else will.

use std::net::IpAddr;

use clap::Args;
use ipam::blocks::Release as Wish;
use serde_json::json;

use super::place::{allocator, rules, Place};
use crate::{Answer, Failure};

pub(super) const EXAMPLES: &str = "Examples:
  podwire ipam release --ip 10.244.1.5
  podwire ipam release --ip 10.244.1.5 --handle k8s-pod-network.4711    only if it is still that one's
  podwire ipam release --handle k8s-pod-network.4711                    everything that it has

A pod that still uses the address is not asked: see `podwire ipam show --ip` first.";

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").args(["ip", "handle"]).required(true).multiple(true))]
pub(crate) struct Release {
    /// This address.
    #[arg(long)]
    ip: Option<IpAddr>,
    /// The addresses of this handle; with --ip, the handle that must have it.
    #[arg(long)]
    handle: Option<String>,
    #[command(flatten)]
    place: Place,
}

const WHAT: &str = "cannot release addresses";

impl Release {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let store = self.place.open(WHAT, false)?;
        let (allocator, rules) = (allocator(&*store), rules(&*store, WHAT)?);
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

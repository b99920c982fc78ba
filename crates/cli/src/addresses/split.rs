//! `podwire ipam split`: a pool becomes several.

use clap::Args;
use serde_json::json;

use super::place::{allocator, rules, Place};
use crate::{Answer, Failure};

pub(super) const EXAMPLES: &str = "Examples:
  podwire ipam split 4 --name default-ipv4-ippool
  podwire ipam split 2 --cidr 10.244.0.0/16

Pods keep their addresses and nodes their blocks. For a moment no new address of the pool is given.\nIf it was cut short, the same command ends it (by --name, if the pool is gone already).";

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").args(["name", "cidr"]).required(true))]
pub(crate) struct Split {
    /// Into how many pools: 2, 4, 8 …
    parts: usize,
    /// The pool, by its name.
    #[arg(long)]
    name: Option<String>,
    /// The pool, by its addresses.
    #[arg(long)]
    cidr: Option<String>,
    #[command(flatten)]
    place: Place,
}

impl Split {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let wanted = self.name.as_ref().or(self.cidr.as_ref()).map(String::as_str).unwrap_or_default();
        let what = format!("cannot split {wanted}");
        let store = self.place.open(&what, false)?;
        let rules = rules(&*store, &what)?;
        let is_meant = |pool: &&podwire_block_ipam::Pool| match &self.name {
            Some(name) => pool.name() == name,
            None => pool.cidr().to_string() == wanted,
        };
        let allocator = allocator(&*store);
        let (name, parts) = match rules.pools.iter().find(is_meant) {
            Some(pool) => (pool.name(), allocator.split(pool, self.parts).map_err(super::to(&what))?),
            // It may have been cut short when the pool was gone and its parts not in use yet.
            None => {
                match allocator.resume_split(&rules.pools, wanted, self.parts).map_err(super::to(&what))? {
                    Some(parts) => (wanted, parts),
                    None => {
                        let error = podwire_cni_spec::Error::internal("there is no such pool");
                        return Err(Failure::new(what, error.with_details("podwire ipam show lists pools")));
                    }
                }
            }
        };
        let text =
            parts.iter().map(|part| format!("made {} {}\n", part.name(), part.cidr())).collect::<String>();
        let json =
            |part: &podwire_block_ipam::Pool| json!({ "name": part.name(), "cidr": part.cidr().to_string() });
        let json = json!({ "removed": name, "made": parts.iter().map(json).collect::<Vec<_>>() });
        Ok(Answer::new(format!("{text}removed {name}\n"), json))
    }
}

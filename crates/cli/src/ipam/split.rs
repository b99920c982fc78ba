//! `podwire ipam split`: splits a pool into several.

use clap::Args;
use serde_json::json;

use super::store_flags::{allocator, rules, StoreFlags};
use crate::failure::Failure;
use crate::output::Output;

pub(super) const EXAMPLES: &str = "Examples:
  podwire ipam split 4 --name default-ipv4-ippool
  podwire ipam split 2 --cidr 10.244.0.0/16

Pods keep their addresses and nodes their blocks. The pool assigns no new addresses during the
split. After an interruption run the same command again; use --name if the pool no longer exists.";

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").args(["name", "cidr"]).required(true))]
pub(crate) struct Split {
    /// Number of new pools: 2, 4, 8 …
    parts: usize,
    /// Name of the pool.
    #[arg(long)]
    name: Option<String>,
    /// Addresses of the pool.
    #[arg(long)]
    cidr: Option<String>,
    #[command(flatten)]
    store: StoreFlags,
}

impl Split {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let wanted = self.name.as_ref().or(self.cidr.as_ref()).map(String::as_str).unwrap_or_default();
        let what = format!("cannot split {wanted}");
        let store = self.store.open(&what, false)?;
        let rules = rules(&*store, &what)?;
        let is_meant = |pool: &&podwire_block_ipam::Pool| match &self.name {
            Some(name) => pool.name() == name,
            None => pool.cidr().to_string() == wanted,
        };
        let allocator = allocator(&*store);
        let (name, parts) = match rules.pools.iter().find(is_meant) {
            Some(pool) => (pool.name(), allocator.split(pool, self.parts).map_err(Failure::context(&what))?),
            // An interrupted split may have removed the pool before it enabled the parts.
            None => {
                match allocator
                    .resume_split(&rules.pools, wanted, self.parts)
                    .map_err(Failure::context(&what))?
                {
                    Some(parts) => (wanted, parts),
                    None => {
                        let error = podwire_cni_spec::Error::internal("the pool does not exist");
                        return Err(Failure::new(what, error.with_details("podwire ipam show lists pools")));
                    }
                }
            }
        };
        let text =
            parts.iter().map(|part| format!("created {} {}\n", part.name(), part.cidr())).collect::<String>();
        let json =
            |part: &podwire_block_ipam::Pool| json!({ "name": part.name(), "cidr": part.cidr().to_string() });
        let json = json!({ "removed": name, "created": parts.iter().map(json).collect::<Vec<_>>() });
        Ok(Output::new(format!("{text}removed {name}\n"), json))
    }
}

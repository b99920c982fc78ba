//! `podwire ipam show`: the use of pools and blocks, and the owner of an address.

use std::net::IpAddr;

use clap::Args;
use podwire_block_ipam::{Allocator, BlockUse, PoolUse};
use serde_json::{json, Value};

use super::store_flags::{allocator, rules, StoreFlags};
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;
use crate::table::table;

pub(super) const EXAMPLES: &str = "Examples:
  podwire ipam show                    pools
  podwire ipam show --blocks           pools and their blocks
  podwire ipam show --borrowed         addresses that pods of other nodes use
  podwire ipam show --ip 10.244.1.5    the owner of an address
  podwire ipam show --store http://10.0.0.1:2379 --json
  podwire ipam show --store kubernetes --kubeconfig admin.conf

IN USE includes addresses in their cool-down. RESERVED counts reserved addresses that are not in
use.";

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Show the owner of this address.
    #[arg(long)]
    ip: Option<IpAddr>,
    /// Show blocks, too.
    #[arg(long, alias = "show-blocks")]
    blocks: bool,
    /// Show only addresses that pods of other nodes use.
    #[arg(long, alias = "show-borrowed", conflicts_with = "blocks")]
    borrowed: bool,
    #[command(flatten)]
    store: StoreFlags,
}

const WHAT: &str = "cannot show addresses";

impl Show {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let store = self.store.open(WHAT, false)?;
        let allocator = allocator(&*store);
        if let Some(ip) = self.ip {
            return holder(&allocator, ip);
        }
        let use_of = allocator.utilization(&rules(&*store, WHAT)?).map_err(Failure::context(WHAT))?;
        let all = || use_of.pools.iter().flat_map(|pool| &pool.blocks).chain(&use_of.outside_pools);
        let json = json!({
            "pools": use_of.pools.iter().map(pool_json).collect::<Vec<_>>(),
            "withoutPool": use_of.outside_pools.iter().map(block_json).collect::<Vec<_>>(),
        });
        if self.borrowed {
            let rows: Vec<_> = all()
                .flat_map(|block| {
                    block.borrowed.iter().map(move |(ip, node)| {
                        vec![ip.to_string(), node.clone(), owner(block), block.cidr.to_string()]
                    })
                })
                .collect();
            let text = if rows.is_empty() {
                "no borrowed addresses\n".into()
            } else {
                table(&["ADDRESS", "USED BY", "BELONGS TO", "BLOCK"], &rows, Paint::stdout())
            };
            return Ok(Output::new(text, json));
        }
        let mut rows = Vec::new();
        for pool in &use_of.pools {
            let counts =
                Counts { total: pool.total, in_use: pool.in_use, reserved: pool.reserved, free: pool.free() };
            rows.push(counts.row(&pool.name, pool.cidr.to_string()));
            if self.blocks {
                rows.extend(pool.blocks.iter().map(block_row));
            }
        }
        if self.blocks {
            rows.extend(use_of.outside_pools.iter().map(block_row));
        }
        let head = ["", "ADDRESSES", "TOTAL", "IN USE", "RESERVED", "FREE"];
        Ok(Output::new(table(&head, &rows, Paint::stdout()), json))
    }
}

fn owner(block: &BlockUse) -> String {
    block.owner.as_ref().map_or_else(|| "none".into(), ToString::to_string)
}

/// The numbers of addresses of a pool or block.
struct Counts {
    total: u128,
    in_use: u128,
    reserved: u128,
    free: u128,
}

impl Counts {
    fn row(&self, name: &str, cidr: String) -> Vec<String> {
        // Percentages of a large IPv6 pool would all be 0.
        let share = |count: u128| match self.total {
            0..=1_000_000 => format!("{count} ({}%)", (count * 100).checked_div(self.total).unwrap_or(0)),
            _ => count.to_string(),
        };
        let (in_use, free) = (share(self.in_use), share(self.free));
        vec![name.into(), cidr, self.total.to_string(), in_use, self.reserved.to_string(), free]
    }
}

fn block_row(block: &BlockUse) -> Vec<String> {
    let counts = Counts {
        total: block.total as u128,
        in_use: block.in_use as u128,
        reserved: block.reserved as u128,
        free: block.free() as u128,
    };
    counts.row(&format!("  {}", owner(block)), block.cidr.to_string())
}

fn pool_json(pool: &PoolUse) -> Value {
    json!({
        "name": pool.name, "cidr": pool.cidr.to_string(), "total": pool.total.to_string(), "inUse": pool.in_use.to_string(),
        "reserved": pool.reserved.to_string(), "free": pool.free().to_string(),
        "blocks": pool.blocks.iter().map(block_json).collect::<Vec<_>>(),
    })
}

fn block_json(block: &BlockUse) -> Value {
    let borrowed = |(ip, node): &(IpAddr, String)| json!({ "ip": ip, "node": node });
    json!({
        "cidr": block.cidr.to_string(), "owner": block.owner.as_ref().map(ToString::to_string), "total": block.total,
        "inUse": block.in_use, "cooling": block.in_cooldown, "reserved": block.reserved, "free": block.free(),
        "borrowed": block.borrowed.iter().map(borrowed).collect::<Vec<_>>(),
    })
}

fn holder(allocator: &Allocator<'_>, ip: IpAddr) -> Result<Output, Failure> {
    let blocks = allocator.blocks().map_err(Failure::context(WHAT))?.into_iter().flatten();
    let block = blocks.into_iter().find(|block| block.contains(ip));
    let Some(found) = block.as_ref().and_then(|block| block.allocation(ip)) else {
        let text = format!("{ip} is not in use\n");
        return Ok(Output::new(text, json!({ "ip": ip, "inUse": false })));
    };
    let attribute = found.attribute;
    let mut text = match (attribute.is_in_cooldown(), attribute.handle()) {
        (true, _) => {
            format!(
                "{ip} is in its cool-down since {}\n",
                attribute.released_at.as_deref().unwrap_or_default()
            )
        }
        (_, handle) => format!("{ip} is in use by {}\n", handle.unwrap_or("an owner without a handle")),
    };
    for (key, value) in &attribute.secondary {
        text += &format!("  {key}: {value}\n");
    }
    Ok(Output::new(
        text,
        json!({
            "ip": ip, "inUse": true, "handle": attribute.handle(), "attributes": attribute.secondary,
            "releasedAt": attribute.released_at, "sequence": found.sequence,
            "block": block.as_ref().map(|block| block.cidr().to_string()),
        }),
    ))
}

//! `podwire ipam show`: how full is it, and who has this address?

use std::net::IpAddr;

use clap::Args;
use podwire_block_ipam::{Allocator, BlockUse, PoolUse};
use serde_json::{json, Value};

use super::place::{allocator, rules, Place};
use crate::paint::Paint;
use crate::table::table;
use crate::{Answer, Failure};

pub(super) const EXAMPLES: &str = "Examples:
  podwire ipam show                    each pool
  podwire ipam show --blocks           and each block of it
  podwire ipam show --borrowed         addresses that pods of other nodes have
  podwire ipam show --ip 10.244.1.5    who has it
  podwire ipam show --store http://10.0.0.1:2379 --json
  podwire ipam show --store kubernetes --kubeconfig admin.conf

IN USE counts addresses that cool down, too. RESERVED counts reserved addresses that nobody has.";

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Who has this address?
    #[arg(long)]
    ip: Option<IpAddr>,
    /// Each block, too.
    #[arg(long, alias = "show-blocks")]
    blocks: bool,
    /// Only addresses that pods of other nodes than the block's have.
    #[arg(long, alias = "show-borrowed", conflicts_with = "blocks")]
    borrowed: bool,
    #[command(flatten)]
    place: Place,
}

const WHAT: &str = "cannot show addresses";

impl Show {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let store = self.place.open(WHAT, false)?;
        let allocator = allocator(&*store);
        if let Some(ip) = self.ip {
            return holder(&allocator, ip);
        }
        let use_of = allocator.utilization(&rules(&*store, WHAT)?).map_err(super::to(WHAT))?;
        let all = || use_of.pools.iter().flat_map(|pool| &pool.blocks).chain(&use_of.outside_pools);
        let json = json!({
            "pools": use_of.pools.iter().map(pool_json).collect::<Vec<_>>(),
            "homeless": use_of.outside_pools.iter().map(block_json).collect::<Vec<_>>(),
        });
        if self.borrowed {
            let rows: Vec<_> = all()
                .flat_map(|block| {
                    block.borrowed.iter().map(move |(ip, node)| {
                        vec![ip.to_string(), node.clone(), owner(block), block.cidr.to_string()]
                    })
                })
                .collect();
            let text = match rows.is_empty() {
                true => "nothing is borrowed\n".into(),
                false => table(&["ADDRESS", "USED BY", "BELONGS TO", "BLOCK"], &rows, Paint::stdout()),
            };
            return Ok(Answer::new(text, json));
        }
        let mut rows = Vec::new();
        for pool in &use_of.pools {
            rows.push(row(
                &pool.name,
                pool.cidr.to_string(),
                pool.total,
                (pool.in_use, pool.reserved, pool.free()),
            ));
            if self.blocks {
                rows.extend(pool.blocks.iter().map(block_row));
            }
        }
        if self.blocks {
            rows.extend(use_of.outside_pools.iter().map(block_row));
        }
        let head = ["", "ADDRESSES", "TOTAL", "IN USE", "RESERVED", "FREE"];
        Ok(Answer::new(table(&head, &rows, Paint::stdout()), json))
    }
}

fn owner(block: &BlockUse) -> String {
    block.owner.as_ref().map_or_else(|| "nobody".into(), ToString::to_string)
}

fn row(name: &str, cidr: String, total: u128, (used, reserved, free): (u128, u128, u128)) -> Vec<String> {
    // A pool of IPv6 has more addresses than anybody wants to read.
    let share = |count: u128| match total {
        0..=1_000_000 => format!("{count} ({}%)", (count * 100).checked_div(total).unwrap_or(0)),
        _ => count.to_string(),
    };
    vec![name.into(), cidr, total.to_string(), share(used), reserved.to_string(), share(free)]
}

fn block_row(block: &BlockUse) -> Vec<String> {
    let numbers = (block.in_use as u128, block.reserved as u128, block.free() as u128);
    row(&format!("  {}", owner(block)), block.cidr.to_string(), block.total as u128, numbers)
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
        "inUse": block.in_use, "cooling": block.cooling, "reserved": block.reserved, "free": block.free(),
        "borrowed": block.borrowed.iter().map(borrowed).collect::<Vec<_>>(),
    })
}

fn holder(allocator: &Allocator<'_>, ip: IpAddr) -> Result<Answer, Failure> {
    let blocks = allocator.blocks().map_err(super::to(WHAT))?.into_iter().flatten();
    let block = blocks.into_iter().find(|block| block.contains(ip));
    let Some(found) = block.as_ref().and_then(|block| block.allocation(ip)) else {
        let text = format!("{ip} is not in use\n");
        return Ok(Answer::new(text, json!({ "ip": ip, "inUse": false })));
    };
    let attribute = found.attribute;
    let mut text = match (attribute.is_cooling(), attribute.handle()) {
        (true, _) => {
            format!("{ip} cools down since {}\n", attribute.released_at.as_deref().unwrap_or_default())
        }
        (_, handle) => format!("{ip} is in use by {}\n", handle.unwrap_or("somebody without a handle")),
    };
    for (key, value) in &attribute.secondary {
        text += &format!("  {key}: {value}\n");
    }
    Ok(Answer::new(
        text,
        json!({
            "ip": ip, "inUse": true, "handle": attribute.handle(), "attributes": attribute.secondary,
            "releasedAt": attribute.released_at, "sequence": found.sequence,
            "block": block.as_ref().map(|block| block.cidr().to_string()),
        }),
    ))
}

//! `podwire ipam pool`: creates a pool, as calicoctl does.

use clap::{Args, ValueEnum};
use ipnet::IpNet;
use podwire_block_ipam::Encapsulation;
use serde_json::json;

use super::store_flags::{allocator, rules, StoreFlags};
use crate::failure::Failure;
use crate::output::Output;

pub(super) const EXAMPLES: &str = "Examples:
  podwire ipam pool pods 10.244.0.0/16
  podwire ipam pool west 10.245.0.0/16 --block-size 28 --nodes 'zone == \"west\"'
  podwire ipam pool pods 10.244.0.0/16 --vxlan cross-subnet --nat-outgoing";

/// When packets between nodes are encapsulated.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum When {
    Always,
    CrossSubnet,
}

#[derive(Debug, Args)]
pub(crate) struct Pool {
    /// Name of the pool.
    name: String,
    /// Addresses of the pool.
    cidr: IpNet,
    /// Prefix length of the blocks [default: 26, or 122 for IPv6].
    #[arg(long, value_name = "LENGTH")]
    block_size: Option<u8>,
    /// Use the pool only on nodes whose labels match.
    #[arg(long, value_name = "SELECTOR")]
    nodes: Option<String>,
    /// Use the pool only for namespaces whose labels match.
    #[arg(long, value_name = "SELECTOR")]
    namespaces: Option<String>,
    /// Encapsulate packets between nodes in VXLAN, always or only across subnets.
    #[arg(long, value_name = "WHEN")]
    vxlan: Option<When>,
    /// Encapsulate packets between nodes in IPIP, always or only across subnets.
    #[arg(long, value_name = "WHEN", conflicts_with = "vxlan")]
    ipip: Option<When>,
    /// Masquerade traffic from pods to addresses outside the pools.
    #[arg(long)]
    nat_outgoing: bool,
    #[command(flatten)]
    store: StoreFlags,
}

impl Pool {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let what = format!("cannot create the pool {}", self.name);
        let mut pool = podwire_block_ipam::Pool::new(&self.name, self.cidr);
        if let Some(length) = self.block_size {
            pool = pool.with_block_size(length);
        }
        pool = self.nodes.iter().fold(pool, |pool, selector| pool.for_nodes(selector));
        pool = self.namespaces.iter().fold(pool, |pool, selector| pool.for_namespaces(selector));
        let vxlan = self.vxlan.map(|when| (Encapsulation::Vxlan, when));
        let encapsulation = vxlan.or_else(|| self.ipip.map(|when| (Encapsulation::Ipip, when)));
        if let Some((kind, when)) = encapsulation {
            pool = pool.with_encapsulation(kind, matches!(when, When::CrossSubnet));
        }
        if self.nat_outgoing {
            pool = pool.with_nat_outgoing();
        }
        let no_labels = Default::default();
        // Invalid selectors fail here.
        pool.selects_node(&no_labels)
            .and(pool.selects_namespace(&no_labels))
            .map_err(Failure::context(&what))?;
        let refuse = |why: String, hint: &str| {
            Err(Failure::new(&what, podwire_cni_spec::Error::internal(why).with_details(hint)))
        };
        if self.block_size.is_some_and(|length| length != pool.block_size()) {
            let why = format!("{} cannot be divided into blocks of that size", self.cidr);
            return refuse(why, "blocks are /20 to /32, or /116 to /128, and not larger than the pool");
        }
        if self.ipip.is_some() && self.cidr.addr().is_ipv6() {
            return refuse("IPIP carries IPv4 only".into(), "use --vxlan");
        }
        let store = self.store.open(&what, true)?;
        let overlaps = |other: &&podwire_block_ipam::Pool| {
            other.cidr().contains(&pool.cidr()) || pool.cidr().contains(&other.cidr())
        };
        if let Some(other) = rules(&*store, &what)?.pools.iter().find(overlaps) {
            let why = format!("{} overlaps with pool {}, {}", pool.cidr(), other.name(), other.cidr());
            return refuse(why, "choose other addresses");
        }
        allocator(&*store).add_pool(&pool).map_err(Failure::context(&what))?;
        let text = format!("created {} {} with blocks of /{}\n", pool.name(), pool.cidr(), pool.block_size());
        let json =
            json!({ "name": pool.name(), "cidr": pool.cidr().to_string(), "blockSize": pool.block_size() });
        Ok(Output::new(text, json))
    }
}

//! `podwire ipam pool`: makes a pool. In a cluster with Calico, calicoctl does that as well.

use clap::{Args, ValueEnum};
use ipnet::IpNet;
use podwire_block_ipam::Encapsulation;
use serde_json::json;

use super::place::{allocator, rules, Place};
use crate::{Answer, Failure};

pub(super) const EXAMPLES: &str = "Examples:
  podwire ipam pool pods 10.244.0.0/16
  podwire ipam pool west 10.245.0.0/16 --block-size 28 --nodes 'zone == \"west\"'
  podwire ipam pool pods 10.244.0.0/16 --vxlan cross-subnet --nat-outgoing";

/// When something is put around packets.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum When {
    Always,
    CrossSubnet,
}

#[derive(Debug, Args)]
pub(crate) struct Pool {
    /// Its name.
    name: String,
    /// Its addresses.
    cidr: IpNet,
    /// The prefix length of its blocks [default: 26, or 122 for IPv6].
    #[arg(long, value_name = "LENGTH")]
    block_size: Option<u8>,
    /// For nodes with such labels only.
    #[arg(long, value_name = "SELECTOR")]
    nodes: Option<String>,
    /// For namespaces with such labels only.
    #[arg(long, value_name = "SELECTOR")]
    namespaces: Option<String>,
    /// Packets between nodes travel in UDP; with cross-subnet, only where a router is between the nodes.
    #[arg(long, value_name = "WHEN")]
    vxlan: Option<When>,
    /// Packets between nodes travel in IPv4 packets.
    #[arg(long, value_name = "WHEN", conflicts_with = "vxlan")]
    ipip: Option<When>,
    /// The world sees the node's address and not the pod's.
    #[arg(long)]
    nat_outgoing: bool,
    #[command(flatten)]
    place: Place,
}

impl Pool {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let what = format!("cannot make the pool {}", self.name);
        let mut pool = podwire_block_ipam::Pool::new(&self.name, self.cidr);
        if let Some(length) = self.block_size {
            pool = pool.with_block_size(length);
        }
        pool = self.nodes.iter().fold(pool, |pool, selector| pool.for_nodes(selector));
        pool = self.namespaces.iter().fold(pool, |pool, selector| pool.for_namespaces(selector));
        let vxlan = self.vxlan.map(|when| (Encapsulation::Vxlan, when));
        let around = vxlan.or_else(|| self.ipip.map(|when| (Encapsulation::Ipip, when)));
        if let Some((kind, when)) = around {
            pool = pool.with_encapsulation(kind, matches!(when, When::CrossSubnet));
        }
        if self.nat_outgoing {
            pool = pool.with_nat_outgoing();
        }
        let nobody = Default::default();
        pool.selects_node(&nobody).and(pool.selects_namespace(&nobody)).map_err(super::to(&what))?;
        let refuse = |why: String, hint: &str| {
            Err(Failure::new(&what, podwire_cni_spec::Error::internal(why).with_details(hint)))
        };
        if self.block_size.is_some_and(|length| length != pool.block_size()) {
            let why = format!("{} cannot be cut into blocks of that size", self.cidr);
            return refuse(why, "blocks are /20 to /32, or /116 to /128, and not larger than the pool");
        }
        if self.ipip.is_some() && self.cidr.addr().is_ipv6() {
            return refuse("IPIP carries IPv4 only".into(), "take --vxlan");
        }
        let store = self.place.open(&what, true)?;
        let overlaps = |other: &&podwire_block_ipam::Pool| {
            other.cidr().contains(&pool.cidr()) || pool.cidr().contains(&other.cidr())
        };
        if let Some(other) = rules(&*store, &what)?.pools.iter().find(overlaps) {
            let why = format!("{} overlaps with pool {}, {}", pool.cidr(), other.name(), other.cidr());
            return refuse(why, "choose other addresses");
        }
        allocator(&*store).add_pool(&pool).map_err(super::to(&what))?;
        let text = format!("made {} {}, in blocks of /{}\n", pool.name(), pool.cidr(), pool.block_size());
        let json =
            json!({ "name": pool.name(), "cidr": pool.cidr().to_string(), "blockSize": pool.block_size() });
        Ok(Answer::new(text, json))
    }
}

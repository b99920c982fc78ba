//! Labs whose pods are routed: `podwire node` on each node, which has blocks of addresses, of pools in the store. The lab does what an operator does
//! there: it makes the pools, writes each node's list of plugins, and releases what a machine had that is gone.

use std::fs;

use serde_json::{json, Value};

use crate::machine::SHARED;
use crate::plan::ROUTER;
use crate::{Error, Fault, Lab, Plan, Result, Store};

/// The plugin that attaches routed pods: who asks for it gets such a lab.
pub(crate) const PLUGIN: &str = "calico";
const LIST: &str = "/etc/cni/net.d/10-calico.conflist";
/// Pools by family, IPv4 first.
const POOLS: [(&str, &str); 2] = [("pods", "10.244.0.0/16"), ("pods-v6", "fd00:244::/112")];
/// Roads that a pool can say, and the flags of `podwire ipam pool` that say it.
const ROADS: [(&str, &[&str]); 4] = [
    ("vxlan", &["--vxlan", "always"]),
    ("direct-or-vxlan", &["--vxlan", "cross-subnet"]),
    ("host-gw", &[]),
    ("ipip", &["--ipip", "always"]),
];

impl Plan {
    /// Whether pods are routed.
    pub(crate) fn is_routed(&self) -> bool {
        self.cni_network == PLUGIN
    }

    /// What makes no sense with routed pods.
    pub(crate) fn check_routed(&self) -> Result<()> {
        if self.flags_of_pools().is_none() {
            let hint = format!("with --cni-network {PLUGIN} there are {}", ROADS.map(|one| one.0).join(", "));
            return Err(Error::input(format!("no pool of addresses has the backend {}", self.backend), hint));
        }
        if self.store == Store::Static {
            let hint = "choose --store embedded or --store etcd";
            return Err(Error::input("a static list has no place for blocks of addresses", hint));
        }
        if self.backend == "ipip" && self.families() != [true] {
            let hint = "choose --family ipv4, or --backend vxlan";
            return Err(Error::input("IPIP carries IPv4 only", hint));
        }
        Ok(())
    }

    fn flags_of_pools(&self) -> Option<&'static [&'static str]> {
        ROADS.iter().find(|(backend, _)| *backend == self.backend).map(|(_, flags)| *flags)
    }

    /// Why something cannot be broken where pods are routed.
    pub(crate) fn lacks(&self, fault: Fault) -> Option<&'static str> {
        match fault {
            _ if !self.is_routed() => None,
            Fault::DuplicateRange => {
                Some("where pods are routed a block has one owner in the store: nobody else can claim it")
            }
            Fault::ForeignConfig => {
                Some("where pods are routed the list of plugins is the operator's: no agent looks at it")
            }
            _ => None,
        }
    }

    /// The store of blocks, as every machine of the lab names it.
    fn blocks(&self) -> String {
        match self.store {
            Store::Etcd => self.etcd(),
            Store::Embedded | Store::Static => format!("{SHARED}/ipam.db"),
        }
    }

    /// `podwire node`.
    pub(crate) fn node_words(&self, node: &str) -> Vec<String> {
        ["node", "--store", &self.blocks(), "--node", node].map(String::from).to_vec()
    }

    /// The list of plugins that an operator writes.
    fn list_of_plugins(&self, node: &str) -> Value {
        let has = |v4: bool| self.families().contains(&v4).to_string();
        let mut plugin = json!({
            "type": PLUGIN,
            "nodename": node,
            "ipam": { "type": "calico-ipam", "assign_ipv4": has(true), "assign_ipv6": has(false) },
        });
        let (kind, key) =
            if self.store == Store::Etcd { ("etcdv3", "etcd_endpoints") } else { ("sqlite", "sqlite_path") };
        plugin["datastore_type"] = kind.into();
        plugin[key] = self.blocks().into();
        if self.policies.is_some() {
            plugin["policy"] = json!({ "type": "k8s" });
        }
        json!({ "cniVersion": "1.1.0", "name": "k8s-pod-network", "plugins": [plugin] })
    }
}

impl Lab {
    /// Makes the pools.
    pub(crate) fn make_pools(&self) -> Result<()> {
        let plan = &self.state.plan;
        for v4 in plan.families() {
            let (name, cidr) = POOLS[usize::from(!*v4)];
            let flags = plan.flags_of_pools().unwrap_or_default();
            self.ipam("make a pool", &[&["pool", name, cidr, "--nat-outgoing"], flags].concat())?;
        }
        Ok(())
    }

    /// A machine is gone, and its files with it: what it and its pods had is released.
    pub(crate) fn release(&self, node: &str) -> Result<()> {
        self.ipam("release what the node had", &["release", "--node", node])
    }

    /// `podwire ipam`, on the router.
    fn ipam(&self, doing: &str, words: &[&str]) -> Result<()> {
        let store = self.state.plan.blocks();
        let words = [&["--json", "ipam"], words, &["--store", &store]].concat();
        let question = (ROUTER.to_owned(), self.own_words(ROUTER, &words));
        self.ask(doing, &[question]).into_iter().collect::<Result<Vec<_>>>().map(drop)
    }

    /// Writes a node's list of plugins.
    pub(crate) fn write_network(&self, node: &str) -> Result<()> {
        let list = self.state.plan.list_of_plugins(node);
        fs::write(self.file(node, LIST)?, format!("{list:#}")).map_err(Error::file("write", LIST))
    }
}

//! Labs with `podwire agent calico` on each node, which allocates blocks of addresses from pools. The lab does the work of
//! an operator: it creates the pools, writes the conflist of each node, and releases the addresses of removed nodes.

use std::fs;

use podwire_fs::FileError;
use podwire_ip::IpFamily;
use serde_json::{json, Value};

use crate::machine::SHARED;
use crate::spec::{CALICO, ROUTER};
use crate::{Error, Fault, Lab, LabSpec, Result, Store};

const CONFLIST: &str = "/etc/cni/net.d/10-calico.conflist";
/// The backends that a pool supports, with their flags of `podwire ipam pool`.
const POOL_BACKENDS: [(&str, &[&str]); 4] = [
    ("vxlan", &["--vxlan", "always"]),
    ("direct-or-vxlan", &["--vxlan", "cross-subnet"]),
    ("host-gw", &[]),
    ("ipip", &["--ipip", "always"]),
];

impl LabSpec {
    /// Whether the nodes run the Calico agent.
    pub(crate) fn is_calico(&self) -> bool {
        self.cni_network == CALICO
    }

    /// Checks what the Calico agent supports.
    pub(crate) fn check_calico(&self) -> Result<()> {
        if self.pool_flags().is_none() {
            let backends = POOL_BACKENDS.map(|one| one.0).join(", ");
            let hint = format!("with --cni-network {CALICO} choose one of {backends}");
            return Err(Error::input(format!("IP pools do not support the backend {}", self.backend), hint));
        }
        if self.store == Store::Static {
            let hint = "choose --store embedded or --store etcd";
            return Err(Error::input("a static list cannot store address blocks", hint));
        }
        if self.backend == "ipip" && self.families() != [IpFamily::V4] {
            let hint = "choose --family ipv4, or --backend vxlan";
            return Err(Error::input("IPIP carries IPv4 only", hint));
        }
        Ok(())
    }

    fn pool_flags(&self) -> Option<&'static [&'static str]> {
        POOL_BACKENDS.iter().find(|(backend, _)| *backend == self.backend).map(|(_, flags)| *flags)
    }

    /// Why a fault is not supported with the Calico agent.
    pub(crate) fn unsupported(&self, fault: Fault) -> Option<&'static str> {
        match fault {
            _ if !self.is_calico() => None,
            Fault::DuplicateRange => {
                Some("with the Calico agent a block has one owner in the store: no other node can claim it")
            }
            Fault::ForeignConfig => {
                Some("the Calico agent does not check the conflist, which belongs to the operator")
            }
            _ => None,
        }
    }

    /// The store of blocks, as a value of `--store`.
    fn block_store(&self) -> String {
        match self.store {
            Store::Etcd => self.etcd(),
            Store::Embedded | Store::Static => format!("{SHARED}/ipam.db"),
        }
    }

    /// The arguments of `podwire agent calico`.
    pub(crate) fn calico_agent(&self, node: &str) -> Vec<String> {
        ["agent", "calico", "--store", &self.block_store(), "--node", node].map(String::from).to_vec()
    }

    /// The conflist of a node.
    fn conflist(&self, node: &str) -> Value {
        let has = |family: IpFamily| self.families().contains(&family).to_string();
        let mut plugin = json!({
            "type": CALICO,
            "nodename": node,
            "ipam": { "type": "calico-ipam", "assign_ipv4": has(IpFamily::V4), "assign_ipv6": has(IpFamily::V6) },
        });
        let (kind, key) =
            if self.store == Store::Etcd { ("etcdv3", "etcd_endpoints") } else { ("sqlite", "sqlite_path") };
        plugin["datastore_type"] = kind.into();
        plugin[key] = self.block_store().into();
        if self.policies.is_some() {
            plugin["policy"] = json!({ "type": "k8s" });
        }
        json!({ "cniVersion": "1.1.0", "name": "k8s-pod-network", "plugins": [plugin] })
    }
}

impl Lab {
    /// Creates the pools.
    pub(crate) fn create_pools(&self) -> Result<()> {
        let spec = &self.state.spec;
        for family in spec.families() {
            let (name, cidr) = match family {
                IpFamily::V4 => ("pods", "10.244.0.0/16"),
                IpFamily::V6 => ("pods-v6", "fd00:244::/112"),
            };
            let flags = spec.pool_flags().unwrap_or_default();
            self.ipam("create a pool", &[&["pool", name, cidr, "--nat-outgoing"], flags].concat())?;
        }
        Ok(())
    }

    /// Releases the addresses and blocks of a removed node and its pods.
    pub(crate) fn release(&self, node: &str) -> Result<()> {
        self.ipam("release the addresses of the node", &["release", "--node", node])
    }

    /// Runs `podwire ipam` on the router.
    fn ipam(&self, doing: &str, words: &[&str]) -> Result<()> {
        let store = self.state.spec.block_store();
        let words = [&["--json", "ipam"], words, &["--store", &store]].concat();
        let command = (ROUTER.to_owned(), self.own_command(ROUTER, &words));
        self.exec_json(doing, &[command]).into_iter().collect::<Result<Vec<_>>>().map(drop)
    }

    /// Writes the conflist of a node.
    pub(crate) fn write_conflist(&self, node: &str) -> Result<()> {
        let list = self.state.spec.conflist(node);
        let written = fs::write(self.file(node, CONFLIST)?, format!("{list:#}"));
        Ok(written.map_err(FileError::at("write", CONFLIST))?)
    }
}

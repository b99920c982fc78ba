//! The flags of the daemons that allocate addresses on a node: `podwire ipam serve` and `podwire agent calico`.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use podwire_agent_ipc::{addresses, pods};
use podwire_block_ipam::store::{Store, StoreError};
use podwire_cni_spec::json;
use serde_json::Value;

use super::store_flags::StoreFlags;
use crate::failure::Failure;

/// The file with the node's name that calico-node writes.
const NODENAME: &str = "/var/lib/calico/nodename";

#[derive(Debug, Args)]
pub(crate) struct NodeFlags {
    #[command(flatten)]
    store: StoreFlags,
    /// Name of this node in the store [default: /var/lib/calico/nodename, or the host name].
    #[arg(long, value_name = "NAME", env = "NODENAME", hide_env = true)]
    node: Option<String>,
    /// Addresses of each family in the warm pool; at most a quarter of a block.
    #[arg(long, value_name = "COUNT", default_value_t = 16)]
    warm_addresses: usize,
    /// Directory of the leases.
    #[arg(long, value_name = "DIR", default_value = addresses::STATE_DIR)]
    pub(crate) state: PathBuf,
    /// Socket for requests of plugins.
    #[arg(long, value_name = "SOCKET", default_value = addresses::SOCKET)]
    pub(crate) socket: PathBuf,
}

impl NodeFlags {
    /// The node's name.
    pub(crate) fn name(&self, what: &str) -> Result<String, Failure> {
        self.node.clone().or_else(|| node_name(&Value::Null)).ok_or_else(|| {
            let error = podwire_cni_spec::Error::internal("this node has no name");
            Failure::new(what, error.with_details("set it with --node"))
        })
    }

    /// The size of the warm pool, which is at least 1.
    pub(crate) fn warm_addresses(&self) -> usize {
        self.warm_addresses.max(1)
    }

    pub(crate) fn kubeconfig(&self) -> Option<PathBuf> {
        self.store.kubeconfig()
    }

    /// Opens the store; a daemon calls it again after the store failed.
    pub(crate) fn opener(
        &self,
    ) -> impl Fn() -> Result<Box<dyn Store>, StoreError> + Clone + Send + Sync + 'static {
        let store = self.store.clone();
        move || store.open_for_daemon()
    }

    /// A watch of this node's pods in Kubernetes, if a Kubernetes is configured.
    pub(crate) fn pods(&self, node: &str, what: &str) -> Result<Option<Arc<dyn pods::Cluster>>, Failure> {
        let Some(pods) = self.store.pods() else { return Ok(None) };
        let pods = pods.and_then(|pods| pods.follow(node).map(|()| pods)).map_err(|why| {
            let error = podwire_cni_spec::Error::internal(format!("watch the pods of {node}: {why}"));
            let hint = "check that --kubeconfig or $KUBECONFIG names a kubeconfig file";
            Failure::new(what, error.with_details(hint))
        })?;
        Ok(Some(Arc::new(pods)))
    }
}

/// The node's name: `nodename` of the network config, calico-node's file, `hostname` of the config, or the host name.
pub(super) fn node_name(config: &Value) -> Option<String> {
    let text = |key: &str| json::get(config, key).and_then(Value::as_str).map(str::to_owned);
    let file = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let named = || text("nodename_file").unwrap_or_else(|| NODENAME.into());
    let candidates = [text("nodename"), file(&named()), text("hostname"), file("/proc/sys/kernel/hostname")];
    candidates.into_iter().flatten().find(|name| !name.is_empty())
}

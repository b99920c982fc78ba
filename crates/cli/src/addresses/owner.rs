//! Who owns a node's blocks: the flags of `podwire ipam serve` and of `podwire node`.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use podwire_agent_ipc::{addresses, pods};
use podwire_block_ipam::store::{Store, StoreError};
use podwire_cni_spec::json;
use serde_json::Value;

use super::place::Place;
use crate::Failure;

/// Where Calico's node agent writes the node's name.
const NODENAME: &str = "/var/lib/calico/nodename";

#[derive(Debug, Args)]
pub(crate) struct Owner {
    #[command(flatten)]
    place: Place,
    /// This node, as the store knows it [default: /var/lib/calico/nodename, or the host's name].
    #[arg(long, value_name = "NAME", env = "NODENAME", hide_env = true)]
    node: Option<String>,
    /// How many addresses of each family are kept ready; at most a quarter of a block.
    #[arg(long, value_name = "COUNT", default_value_t = 16)]
    stock: usize,
    /// Where leases are kept.
    #[arg(long, value_name = "DIR", default_value = addresses::STATE_DIR)]
    pub(crate) state: PathBuf,
    /// Where plugins ask for addresses.
    #[arg(long, value_name = "SOCKET", default_value = addresses::SOCKET)]
    pub(crate) socket: PathBuf,
}

impl Owner {
    /// The node's name.
    pub(crate) fn name(&self, what: &str) -> Result<String, Failure> {
        self.node.clone().or_else(|| node_name(&Value::Null)).ok_or_else(|| {
            let error = podwire_cni_spec::Error::internal("this node has no name");
            Failure::new(what, error.with_details("tell it with --node"))
        })
    }

    pub(crate) fn stock(&self) -> usize {
        self.stock.max(1)
    }

    pub(crate) fn kubeconfig(&self) -> Option<PathBuf> {
        self.place.kubeconfig()
    }

    /// How the store is opened, each time it is needed.
    pub(crate) fn opener(
        &self,
    ) -> impl Fn() -> Result<Box<dyn Store>, StoreError> + Clone + Send + Sync + 'static {
        let place = self.place.clone();
        move || place.open_or_tell()
    }

    /// Who knows what Kubernetes knows of this node's pods, if there is a Kubernetes.
    pub(crate) fn pods(&self, node: &str, what: &str) -> Result<Option<Arc<dyn pods::Cluster>>, Failure> {
        let Some(pods) = self.place.pods() else { return Ok(None) };
        let pods = pods.and_then(|pods| pods.follow(node).map(|()| pods)).map_err(|why| {
            let error = podwire_cni_spec::Error::internal(format!("follow the pods of {node}: {why}"));
            let hint = "see that --kubeconfig or $KUBECONFIG names a kubeconfig file";
            Failure::new(what, error.with_details(hint))
        })?;
        Ok(Some(Arc::new(pods)))
    }
}

/// `nodename` of the config, the file of Calico's node agent, `hostname` of the config, the host's name.
pub(super) fn node_name(config: &Value) -> Option<String> {
    let text = |key: &str| json::get(config, key).and_then(Value::as_str).map(str::to_owned);
    let file = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let named = || text("nodename_file").unwrap_or_else(|| NODENAME.into());
    let candidates = [text("nodename"), file(&named()), text("hostname"), file("/proc/sys/kernel/hostname")];
    candidates.into_iter().flatten().find(|name| !name.is_empty())
}

//! The flags for Kubernetes as the store of the nodes, and for the file of the network config.

use std::path::{Path, PathBuf};

use clap::Args;
use podwire_kubernetes::ClientOptions;
use podwire_subnets::KubernetesOptions;

/// The path of the network config in flannel's manifest.
const NET_CONFIG: &str = "/etc/kube-flannel/net-conf.json";

#[derive(Debug, Args)]
#[command(next_help_heading = "Kubernetes")]
pub(super) struct KubernetesFlags {
    /// Take the nodes from Kubernetes: the same as --store kubernetes.
    #[arg(long, env = "FLANNELD_KUBE_SUBNET_MGR", hide_env = true)]
    pub(super) kube_subnet_mgr: bool,
    /// URL of the API server [default: of the kubeconfig or of the cluster].
    #[arg(long, value_name = "URL", env = "FLANNELD_KUBE_API_URL", hide_env = true)]
    kube_api_url: Option<String>,
    /// Kubeconfig file.
    #[arg(long, value_name = "FILE", env = "FLANNELD_KUBECONFIG_FILE", hide_env = true)]
    kubeconfig_file: Option<PathBuf>,
    /// Prefix of the annotations on Node objects.
    #[arg(long, value_name = "PREFIX", env = "FLANNELD_KUBE_ANNOTATION_PREFIX", hide_env = true)]
    #[arg(default_value = "flannel.alpha.coreos.com")]
    kube_annotation_prefix: String,
    /// File of the network config.
    #[arg(long, value_name = "FILE", env = "FLANNELD_NET_CONFIG_PATH", hide_env = true)]
    #[arg(default_value = NET_CONFIG)]
    net_config_path: PathBuf,
    /// Set the node condition NetworkUnavailable to False when the network is ready.
    #[arg(long, value_name = "BOOL", env = "FLANNELD_SET_NODE_NETWORK_UNAVAILABLE", hide_env = true)]
    #[arg(default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub(super) set_node_network_unavailable: bool,
}

impl KubernetesFlags {
    pub(super) fn options(&self, node: &str) -> KubernetesOptions {
        KubernetesOptions {
            client: self.client_options(),
            annotation_prefix: self.kube_annotation_prefix.clone(),
            net_conf: self.net_config_path.clone(),
            ..KubernetesOptions::new(node)
        }
    }

    pub(super) fn client_options(&self) -> ClientOptions {
        ClientOptions { kubeconfig: self.kubeconfig_file.clone(), api_url: self.kube_api_url.clone() }
    }

    /// Reads the network config for the embedded store, which may already contain one. A missing file is an error only
    /// if the user named it.
    pub(super) fn read_network(&self) -> podwire_subnets::Result<Option<String>> {
        match std::fs::read_to_string(&self.net_config_path) {
            Ok(text) => Ok(Some(text)),
            Err(_) if self.net_config_path == Path::new(NET_CONFIG) => Ok(None),
            Err(error) => Err(podwire_subnets::Error::Config {
                origin: self.net_config_path.display().to_string(),
                why: error.to_string(),
            }),
        }
    }
}

//! How to reach the API server.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use crate::{error_chain, Error, Result};

/// The time limit for one request.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// How to reach the API server. With neither field set, the service account of the pod that the program runs in is
/// used.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// A kubeconfig file.
    pub kubeconfig: Option<PathBuf>,
    /// The server's URL; takes precedence over the kubeconfig's.
    pub api_url: Option<String>,
}

impl ClientOptions {
    /// The options of a kubeconfig file, or of the pod if there is none.
    pub fn from_kubeconfig(kubeconfig: Option<PathBuf>) -> ClientOptions {
        ClientOptions { kubeconfig, api_url: None }
    }

    /// A client. It reads credentials and does not connect yet.
    pub async fn client(&self) -> Result<Client> {
        Client::try_from(self.config().await?).map_err(Error::while_doing("connect"))
    }

    /// The client's configuration, for callers that change it before they build a client.
    pub async fn config(&self) -> Result<Config> {
        let failed = |why| Error { doing: "fail to create kubernetes config".into(), why };
        self.read_config().await.map_err(failed)
    }

    async fn read_config(&self) -> Result<Config, String> {
        let address = |url: &str| url.parse().map_err(|error| format!("kube-api-url {url}: {error}"));
        let mut config = match (&self.kubeconfig, &self.api_url) {
            (Some(path), _) => {
                let with_path = |error: &(dyn std::error::Error + 'static)| {
                    format!("{}: {}", path.display(), error_chain(error))
                };
                let file = Kubeconfig::read_from(path).map_err(|error| with_path(&error))?;
                let options = KubeConfigOptions::default();
                Config::from_custom_kubeconfig(file, &options).await.map_err(|error| with_path(&error))?
            }
            (None, Some(url)) => Config::new(address(url)?),
            (None, None) => Config::incluster().map_err(|error| {
                format!(
                    "{}; outside of a pod, name a kubeconfig file or an API server URL",
                    error_chain(&error)
                )
            })?,
        };
        if let Some(url) = &self.api_url {
            config.cluster_url = address(url)?;
        }
        Ok(config)
    }

    /// The node that a pod runs on. An agent in a DaemonSet that only knows its pod's name finds its node with this.
    pub async fn node_of_pod(&self, namespace: &str, pod: &str) -> Result<String> {
        let doing = format!("get pod {namespace}/{pod}");
        let pods: Api<Pod> = Api::namespaced(self.client().await?, namespace);
        let found = request(&doing, pods.get(pod)).await?;
        let name = found.spec.and_then(|spec| spec.node_name).filter(|name| !name.is_empty());
        let why = "node name not present in pod spec: the pod is not scheduled yet";
        name.ok_or_else(|| Error { doing, why: why.into() })
    }
}

/// Awaits one request for at most [`REQUEST_TIMEOUT`].
pub async fn request<T>(doing: impl ToString, response: impl Future<Output = kube::Result<T>>) -> Result<T> {
    match tokio::time::timeout(REQUEST_TIMEOUT, response).await {
        Ok(response) => response.map_err(Error::while_doing(doing)),
        Err(_) => {
            let why = format!("no response within {} s", REQUEST_TIMEOUT.as_secs());
            Err(Error { doing: doing.to_string(), why })
        }
    }
}

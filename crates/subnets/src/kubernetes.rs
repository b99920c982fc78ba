//! Nodes as Kubernetes knows them: pod_cidrs in `spec.podCIDRs`, given out by the controller manager, and everything else in
//! flannel's annotations.
//!
//! flannel's agents each follow every Node object whole, with its images, conditions and heartbeats. Here only metadata are
//! followed (`PartialObjectMetadata`), which is where the annotations are. They do not have `spec.podCIDRs`; but the
//! API server never lets a node's range change once it is set, so each node is read whole once in its life, and of that
//! only the pod_cidrs are kept.

mod acquire;
mod annotations;
mod object;
mod watch;

use std::net::IpAddr;
use std::path::PathBuf;

use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client};
use podwire_kubernetes::{request, ClientOptions};

pub use annotations::Annotations;
use object::LeanNode;

use crate::snapshot::{SnapshotSender, Watch};
use crate::{Error, NetConf, Node, Registration, Result};

/// How to reach the API server, and flannel's settings for it.
#[derive(Clone, Debug)]
pub struct KubernetesOptions {
    /// How to reach the API server.
    pub client: ClientOptions,
    /// This node.
    pub node_name: String,
    /// The prefix of flannel's annotations.
    pub annotation_prefix: String,
    /// net-conf.json, from the ConfigMap.
    pub net_conf: PathBuf,
}

impl KubernetesOptions {
    /// flannel's defaults, for a node.
    pub fn new(node_name: &str) -> KubernetesOptions {
        KubernetesOptions {
            client: ClientOptions::default(),
            node_name: node_name.into(),
            annotation_prefix: "flannel.alpha.coreos.com".into(),
            net_conf: "/etc/kube-flannel/net-conf.json".into(),
        }
    }
}

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Good to know.
    Normal,
    /// Somebody should look.
    Warning,
}

/// The Node objects.
#[derive(Clone)]
pub struct Kubernetes {
    client: Client,
    name: String,
    annotations: Annotations,
    net_conf: PathBuf,
    recorder: Recorder,
}

impl std::fmt::Debug for Kubernetes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kubernetes").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Kubernetes {
    /// Reads credentials. Nothing is connected yet.
    pub async fn new(options: &KubernetesOptions) -> Result<Kubernetes> {
        let client = options.client.client().await?;
        let annotations = Annotations::new(&options.annotation_prefix)
            .map_err(|why| Error::Config { origin: "kube-annotation-prefix".into(), why })?;
        let (name, net_conf) = (options.node_name.clone(), options.net_conf.clone());
        let reporter = Reporter { controller: "podwire".into(), instance: Some(name.clone()) };
        let recorder = Recorder::new(client.clone(), reporter);
        Ok(Kubernetes { client, name, annotations, net_conf, recorder })
    }

    /// The network's config, from the ConfigMap's file.
    pub async fn network(&self) -> Result<NetConf> {
        let text = tokio::fs::read_to_string(&self.net_conf)
            .await
            .map_err(Error::file("failed to read net conf", &self.net_conf))?;
        NetConf::parse(&self.net_conf.display().to_string(), &text)
    }

    /// What this node's object says of it from before: the range, and the hardware address that the VXLAN device must get
    /// again.
    pub async fn find_previous(&self) -> Result<Option<Node>> {
        let (conf, own) = (self.network().await?, self.own().await?);
        let pod_cidrs = own.pod_cidrs(&conf).unwrap_or_default();
        Ok(self.annotations.read(&self.name, own.annotations(), pod_cidrs, &conf).ok())
    }

    /// The addresses that the administrator asks this node to use, `node-public-ip` and `node-public-ipv6`; and those by
    /// which the cluster knows it, its InternalIPs.
    pub async fn own_addresses(&self) -> Result<(crate::Underlay, Vec<IpAddr>)> {
        let own = self.own().await?;
        Ok((self.annotations.wished(own.annotations()), own.internal_ips()))
    }

    /// Tells the others about this node, whose range the controller has set. [`Error::PodCidrNotAssigned`] if it has not:
    /// [`wait_for_pod_cidr`](Kubernetes::wait_for_pod_cidr) waits for that.
    pub async fn acquire(&self, registration: &Registration) -> Result<Node> {
        acquire::acquire(self, registration).await
    }

    /// Waits until the controller has given this node a range.
    pub async fn wait_for_pod_cidr(&self) -> Result<()> {
        watch::wait_for_pod_cidr(self).await
    }

    /// Says that the node's network works: the scheduler keeps pods away until then (condition `NetworkUnavailable`).
    pub async fn set_network_available(&self) -> Result<()> {
        acquire::set_network_available(self).await
    }

    /// Tells the administrator something, as an event of the Node object. The same again counts up.
    pub async fn event(&self, severity: Severity, reason: &str, note: &str) -> Result<()> {
        let type_ = match severity {
            Severity::Normal => EventType::Normal,
            Severity::Warning => EventType::Warning,
        };
        // The API server refuses longer notes.
        let note = Some(note.chars().take(1000).collect());
        let event = Event { type_, reason: reason.into(), note, action: "Network".into(), secondary: None };
        let about = object::reference(&self.name);
        Ok(request("create an event", self.recorder.publish(&event, &about)).await?)
    }

    /// All nodes that have a network, and all changes of them.
    pub fn watch(&self) -> Watch {
        let kubernetes = self.clone();
        SnapshotSender::start(|sender| watch::follow(kubernetes, sender))
    }

    async fn own(&self) -> Result<LeanNode> {
        let found = request(format!("get node {}", self.name), self.nodes().get_opt(&self.name)).await?;
        found.ok_or_else(|| Error::UnknownNode {
            name: self.name.clone(),
            place: "the cluster".into(),
            hint: "has kubelet registered it? NODE_NAME must be the Node object's name".into(),
        })
    }

    fn nodes(&self) -> Api<LeanNode> {
        Api::all(self.client.clone())
    }
}

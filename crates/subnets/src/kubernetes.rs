//! Node records in Kubernetes: pod CIDRs in `spec.podCIDRs`, which the controller manager assigns, and everything else
//! in flannel's annotations.
//!
//! flannel's agents watch whole Node objects, with images, conditions and heartbeats. Podwire watches only the metadata
//! (`PartialObjectMetadata`), which have the annotations but not `spec.podCIDRs`. The API server never lets `podCIDRs`
//! change once they are set, so each node is read whole once, and only its pod CIDRs are kept.

mod acquire;
mod annotations;
mod object;
mod watch;

use std::net::IpAddr;
use std::path::PathBuf;

use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client};
use podwire_fs::FileError;
use podwire_kubernetes::{request, ClientOptions};

pub use annotations::Annotations;
use object::LeanNode;

use crate::error::{Error, Result};
use crate::netconf::NetConf;
use crate::node::{Node, Underlay};

/// The client options, and flannel's options for Kubernetes.
#[derive(Clone, Debug)]
pub struct KubernetesOptions {
    /// The client options.
    pub client: ClientOptions,
    /// The name of this node.
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

/// The severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Information.
    Normal,
    /// A problem.
    Warning,
}

/// The node records in Node objects.
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
    /// Creates a client. It does not connect yet.
    pub async fn new(options: &KubernetesOptions) -> Result<Kubernetes> {
        let client = options.client.client().await?;
        let annotations = Annotations::new(&options.annotation_prefix)
            .map_err(|why| Error::Config { origin: "kube-annotation-prefix".into(), why })?;
        let (name, net_conf) = (options.node_name.clone(), options.net_conf.clone());
        let reporter = Reporter { controller: "podwire".into(), instance: Some(name.clone()) };
        let recorder = Recorder::new(client.clone(), reporter);
        Ok(Kubernetes { client, name, annotations, net_conf, recorder })
    }

    /// The network config, from the ConfigMap's file.
    pub async fn network(&self) -> Result<NetConf> {
        let text = tokio::fs::read_to_string(&self.net_conf)
            .await
            .map_err(FileError::at("failed to read net conf", &self.net_conf))?;
        NetConf::parse(&self.net_conf.display().to_string(), &text)
    }

    /// The record of this node from before a restart: its pod CIDRs, and the MAC address that the VXLAN device must get
    /// again.
    pub async fn find_previous(&self) -> Result<Option<Node>> {
        let (conf, own) = (self.network().await?, self.own().await?);
        let pod_cidrs = own.pod_cidrs(&conf).unwrap_or_default();
        Ok(self.annotations.read(&self.name, own.annotations(), pod_cidrs, &conf).ok())
    }

    /// The addresses that the administrator has set for this node with the annotations `node-public-ip` and
    /// `node-public-ipv6`, and the node's InternalIPs.
    pub async fn own_addresses(&self) -> Result<(Underlay, Vec<IpAddr>)> {
        let own = self.own().await?;
        Ok((self.annotations.requested_underlay(own.annotations()), own.internal_ips()))
    }

    /// Creates an event of the Node object. Repeated events are counted.
    pub async fn event(&self, severity: Severity, reason: &str, note: &str) -> Result<()> {
        let type_ = match severity {
            Severity::Normal => EventType::Normal,
            Severity::Warning => EventType::Warning,
        };
        // The API server rejects longer notes.
        let note = Some(note.chars().take(1000).collect());
        let event = Event { type_, reason: reason.into(), note, action: "Network".into(), secondary: None };
        let about = object::reference(&self.name);
        Ok(request("create an event", self.recorder.publish(&event, &about)).await?)
    }

    async fn own(&self) -> Result<LeanNode> {
        let found = request(format!("get node {}", self.name), self.nodes().get_opt(&self.name)).await?;
        found.ok_or_else(|| Error::UnknownNode {
            name: self.name.clone(),
            place: "the cluster".into(),
            hint: "check that kubelet has registered it and that NODE_NAME is the Node object's name".into(),
        })
    }

    fn nodes(&self) -> Api<LeanNode> {
        Api::all(self.client.clone())
    }
}

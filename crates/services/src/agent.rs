//! The thread that keeps the Services of this node in the kernel.
//!
//! It takes the events of a source and the node's networks, and reconciles after each. It changes nothing before the source
//! has listed every kind: a source that does not answer is not a cluster without Services.

mod measurements;
mod node_addresses;
mod reconciler;
mod status;
mod trigger_times;

use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use podwire_reconcile::Handle;
use serde_json::Value;

use crate::health::{HealthReport, Now};
use crate::kube_proxy::{Applied, KubeProxyStatus, KubeProxyThread};
use crate::{EndpointServices, Error, Kind, ObjectName, Result};
pub use measurements::Measurements;
use reconciler::{ServicesReconciler, Shared};
pub use status::{Events, ServicesStatus};

/// The interval between reconciles without an event.
const RESYNC: Duration = Duration::from_secs(30);

/// Options of a [`ServicesAgent`].
#[derive(Clone, Debug, Default)]
pub struct ServicesOptions {
    /// The node's name in the cluster.
    pub node_name: String,
    /// The networks whose addresses of this node serve NodePorts; `None` is the first address of each family in the status
    /// of the Node. A family without a network is served at all addresses.
    pub node_port_networks: Option<Vec<IpNet>>,
    /// Where `/healthz` and `/livez` are served, as by kube-proxy; the unspecified address is all addresses of both families.
    pub healthz: Option<SocketAddr>,
    /// Whether to remove what kube-proxy left, when the Services are in the kernel for the first time.
    pub cleanup_kube_proxy: bool,
}

/// An event of a source.
#[derive(Clone, Debug)]
pub enum Update {
    /// The complete list of the objects of a kind.
    Listed(Kind, Vec<Value>),
    /// A new or changed object.
    Changed(Value),
    /// A deleted object.
    Deleted(Kind, ObjectName),
}

/// A message to the thread.
#[derive(Debug)]
enum Message {
    Update(Update),
    /// The networks of this node's pods.
    PodNetworks(Vec<IpNet>),
}

/// The handle of the thread. The thread ends when the last handle is dropped; what is in the kernel stays.
#[derive(Clone, Debug)]
pub struct ServicesAgent {
    thread: Handle<Message>,
    shared: Shared,
    endpoint_services: EndpointServices,
    kube_proxy: KubeProxyStatus,
    /// Ends the thread that looks for kube-proxy, when the last handle is dropped.
    _kube_proxy: Handle<Applied>,
}

impl ServicesAgent {
    /// Starts the thread in the network namespace of the caller.
    pub fn start(options: ServicesOptions) -> Result<ServicesAgent> {
        let (shared, kube_proxy) = (Shared::default(), KubeProxyStatus::default());
        let cleaner = KubeProxyThread::start(options.cleanup_kube_proxy, kube_proxy.clone())?;
        let reconciler = ServicesReconciler::new(options, shared.clone(), cleaner.clone())?;
        let endpoint_services = reconciler.endpoint_services();
        let thread = podwire_reconcile::spawn("services", RESYNC, reconciler).map_err(Error::Thread)?;
        Ok(ServicesAgent { thread, shared, endpoint_services, kube_proxy, _kube_proxy: cleaner })
    }

    /// Delivers an event of the source.
    pub fn update(&self, update: Update) -> Result<()> {
        self.send(Message::Update(update))
    }

    /// Sets the networks that contain only addresses of this node's pods.
    pub fn set_pod_networks(&self, networks: Vec<IpNet>) -> Result<()> {
        self.send(Message::PodNetworks(networks))
    }

    fn send(&self, message: Message) -> Result<()> {
        self.shared.health.lock().times.queued(Now::read());
        Ok(self.thread.send(message)?)
    }

    /// A kube-proxy that runs, or what one left; looked for since the Services are in the kernel.
    pub fn kube_proxy_problem(&self) -> Option<String> {
        self.kube_proxy.problem()
    }

    /// The status after the last reconcile.
    pub fn status(&self) -> ServicesStatus {
        self.shared.status.lock().clone()
    }

    /// The Services of each endpoint.
    pub fn endpoint_services(&self) -> EndpointServices {
        self.endpoint_services.clone()
    }

    /// The durations that the thread measures.
    pub fn measurements(&self) -> &Measurements {
        &self.shared.measurements
    }

    /// What is measured about `/healthz` and `/livez`.
    pub fn health(&self) -> HealthReport {
        self.shared.health.report()
    }
}

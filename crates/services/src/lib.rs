//! Kubernetes Services on a node: kube-proxy's place.
//!
//! ```text
//! Services, EndpointSlices, Nodes, ServiceCIDRs (JSON) ── Compiler ──▶ Desired ── dataplane ──▶ nftables
//! ```
//!
//! [`Compiler`] holds the objects of the API and decides, with kube-proxy's rules, which address, protocol and port leads
//! to which endpoints on this node. After an event it compiles only the Services that changed, and returns the [`Changes`].
//! An object with a mistake is reported as a [`Problem`] with its name; the other objects take effect. This part does no
//! I/O.
//!
//! [`dataplane`] brings the kernel to the [`Desired`] state. [`ServicesAgent`] is the thread that does so after every event,
//! and answers health checks of load balancers. [`kube_proxy`] finds a kube-proxy on the node, and removes what one left.
//!
//! The data path does not depend on the thread. When it ends, the Services stay as they are.

#![forbid(unsafe_code)]

mod agent;
pub mod api;
mod changes;
mod choice;
mod claims;
mod compiled;
mod compiler;
pub mod dataplane;
mod desired;
mod details;
mod endpoint_services;
mod endpoints;
mod error;
mod explain;
mod frontends;
mod health;
pub mod kube_proxy;
mod merged;
mod node;
mod objects;
mod owners;
mod problem;
mod selection;
mod spec;
mod without_local;

pub use agent::{Events, Measurements, ServicesAgent, ServicesOptions, ServicesStatus, Update};
pub use changes::Changes;
pub use choice::Choice;
pub use claims::ClaimKind;
pub use compiler::Compiler;
pub use desired::Desired;
pub use details::{Decision, PortDecisions, ServiceDetails};
pub use endpoint_services::EndpointServices;
pub use error::{Error, Result};
pub use explain::{explain, Admission, Client, Explanation, Fate, Masquerade, RefusalReason, Target};
pub use frontends::{Backend, Clients, Frontend, Reach, Refusal};
pub use health::{HealthCheck, HealthReport, ResponseCounts};
pub use node::{NodeInput, NodePortAddresses};
pub use objects::{Kind, ObjectName, Objects};
pub use podwire_policy::Protocol;
pub use problem::Problem;
pub use without_local::ServicesWithoutLocal;

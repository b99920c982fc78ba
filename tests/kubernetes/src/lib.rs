//! A Kubernetes on one machine, with real programs only: etcd, kube-apiserver, kube-controller-manager and kube-scheduler
//! on one stage, and nodes with containerd, kubelet and kube-proxy on others, all on one link.
//!
//! ```text
//!   control, 192.168.99.1: etcd, kube-apiserver, kube-controller-manager, kube-scheduler
//!      │
//!     lan ──┬─ n1, 192.168.99.11: containerd, kubelet, kube-proxy; then, as pods, what deploy/kubernetes-flannel.yaml says:
//!           │                     installer, agent, controller
//!           ├─ n2, 192.168.99.12
//!           └─ n3, 192.168.99.13 …
//! ```
//!
//! ```no_run
//! use podwire_kubernetes_tests::{manifest, Cluster, Ranges};
//! let cluster = Cluster::new(Ranges::Podwire);
//! let node = cluster.boot("n1", 11);                   // not ready: it has no network
//! cluster.api.apply(&manifest::objects("deploy/kubernetes-flannel.yaml"));
//! cluster.wait("n1 is ready", || cluster.api.is_ready("n1").then_some(()));
//! let node = cluster.reboot(node);                     // the disk stays, all else is new
//! ```
//!
//! Nodes are [stages](podwire_runtime_tests::Stage): they end with the test and leave nothing. kubelet cannot write to the
//! kernel that all nodes share ([`Machine`]).

mod api;
pub mod chart;
mod cluster;
mod control_plane;
mod machine;
pub mod manifest;
pub mod metrics;
mod programs;
pub mod services;
pub mod web;

pub use api::Kube;
pub use cluster::{Cluster, Ranges};
pub use machine::Machine;
pub use programs::{coredns, helm, image, programs};

//! Servers that tests and benchmarks start and stop.
//!
//! - [`EtcdServer`]: a real etcd with one member, with or without TLS.
//! - [`KubeApiServer`]: a real kube-apiserver with its own etcd.
//! - [`StandInApiServer`]: an in-process imitation of the API server, for faults that a real one does not show on
//!   demand.
//! - [`TcpProxy`]: a connection that a test can cut or slow down.
//!
//! Every server listens on free loopback ports, keeps its files in its own temporary directory, and ends when its value
//! is dropped. A failure to start is a panic: this code runs in tests only.

#![allow(clippy::unwrap_used)]

mod certificates;
mod etcd;
mod kube_apiserver;
mod process;
mod proxy;
mod stand_in;

pub use certificates::Certificates;
pub use etcd::EtcdServer;
pub use kube_apiserver::{kubernetes_programs, KubeApiServer};
pub use process::{free_port, spawn_logged, ChildGuard};
pub use proxy::TcpProxy;
pub use stand_in::{StandInApiServer, State};

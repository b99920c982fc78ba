//! The harness for real container runtimes: containerd, podman and docker.
//!
//! A [`Stage`] looks like a whole machine to a container runtime: it has its own network, mounts, processes and
//! cgroups; its own `/run`, `/var/lib`, `/var/log`, `/etc` and `/opt`; and plugins, Debian's or Podwire's, in
//! `/opt/cni/bin`. It is a [`Node`](podwire_tests::Node) too, with all functions that the other suites use: run
//! scripts, write files, listen in pods, connect to ports, list leftovers.
//!
//! ```no_run
//! use podwire_runtime_tests::{Plugins, Stage};
//!
//! let stage = Stage::new(Plugins::Ours);
//! let outside = stage.outside();                              // a client beyond the node, IPv4 and IPv6
//! stage.write("/etc/cni/net.d/10-pods.conflist", "{ … }");
//! let before = stage.traces();
//! let mut daemon = stage.daemon(&["dockerd", "--bridge=none"]); // runs until it is ended, or the stage goes
//! daemon.expect(&["API listen on"]);
//! // … run containers; for one whose namespace has a path:
//! let pod = stage.adopt("web", "/proc/4711/ns/net");
//! assert!(stage.pings(Some(&pod), "10.1.0.1"));
//! stage.ask(Some(&outside), stage.address(), "tcp/8080");
//! let flow = stage.flow(&outside, &pod, "10.1.0.2");
//! assert!((0.5..=1.2).contains(&flow.share_of(8_000_000)));   // of 8 Mbit/s
//! daemon.kill(&stage);
//! assert_eq!(podwire_tests::differences(&before, &stage.traces()), "");
//! ```
//!
//! A stage ends with the test, however it ends. Its first process reads a pipe of the test. When that closes, the
//! process ends, and the kernel kills everything in its PID namespace (daemons, shims, containers). With the last
//! process go the network, the mounts and all files, which are in memory. A shell outside then removes the stage's
//! cgroups. Nothing is killed by name, so stages do not affect each other or the machine's own runtimes.
//!
//! PIDs are those of the stage's PID namespace, as `kill` and `/proc` on the stage use them, not those of the machine.
//! So [`Daemon`] signals the daemon, not the `nsenter` that started it.
//!
//! There is no registry: images are built here, from Debian's static busybox ([`image`]), as one file that `ctr`,
//! `podman` and `docker` all load.

mod containerd;
mod cri;
mod daemon;
mod docker;
mod engine;
mod flow;
mod gate;
mod guide;
pub mod image;
mod newer;
mod outside;
mod podman;
mod stage;
mod traces;

pub use containerd::{network, Containerd, Unlike, NETWORK, SOCKET};
pub use cri::{Container, Cri, Executed, PodSpec, Sandbox};
pub use daemon::Daemon;
pub use docker::Docker;
pub use engine::{settle_at, ContainerInfo, ContainerSpec, Engine};
pub use flow::{Flow, Limit};
pub use gate::{Gate, Then, GATES};
pub use newer::{newer_containerd, newer_nft};
pub use podman::Podman;
pub use stage::{Plugins, Stage};

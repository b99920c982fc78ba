//! The DHCP daemon: it gets leases for pods, and keeps them for as long as the pods live.
//!
//! A lease needs somebody who is there when half of its time is over; a plugin is not. So the `dhcp` plugin asks this
//! daemon over a unix socket (`podwire_agent_ipc::dhcp` has the words), and the daemon speaks DHCP from inside the pods.
//!
//! - [`machine`] is the life of a lease without sockets and clocks: time and packets in, packets and changes out.
//!   [`v4`] and [`v6`] are the two protocols behind it, [`sieve`] decides what of a packet may be read at all;
//! - [`wire`] sends and receives inside a pod's namespace, [`interface`] changes the pod's interface;
//! - [`record`] keeps leases over a restart of the daemon;
//! - [`daemon`] puts it together: one thread, which waits in one place for whatever comes first.

pub mod daemon;
pub mod dialect;
mod door;
mod error;
pub mod frame;
pub mod grant;
pub mod interface;
mod journal;
pub mod machine;
pub mod pace;
pub mod record;
pub mod sieve;
mod tenant;
pub mod v4;
pub mod v6;
pub mod wire;

pub use daemon::{run, Settings};
pub use error::{Error, Result};

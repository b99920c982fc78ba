//! The DHCP daemon: acquires leases for pods and renews them while the pods run.
//!
//! A lease must be renewed after half of its time, when the plugin has long ended. So the `dhcp` plugin sends its requests to
//! this daemon over a unix socket (`podwire_agent_ipc::dhcp`), and the daemon speaks DHCP from inside the pods.
//!
//! - [`machine`] is the state machine of a lease, without sockets and clocks: time and packets in, packets and changes out.
//!   [`v4`] and [`v6`] encode and decode the messages, [`sanitize`] removes what must not be decoded;
//! - [`socket`] sends and receives inside a pod's namespace, [`interface`] changes the pod's interface;
//! - [`record`] stores leases across a restart of the daemon;
//! - [`daemon`] combines them: one thread with one poll loop.

mod client;
pub mod daemon;
mod error;
pub mod frame;
pub mod grant;
pub mod interface;
mod log;
pub mod machine;
pub mod message;
pub mod protocol;
pub mod record;
pub mod retransmit;
pub mod sanitize;
mod server;
mod settings;
pub mod socket;
pub mod v4;
pub mod v6;

pub use daemon::run;
pub use error::{Error, Result};
pub use settings::Settings;

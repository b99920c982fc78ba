//! `podwire dhcp daemon`: the daemon of the dhcp plugin.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use crate::duration;
use crate::failure::Failure;

const EXAMPLES: &str = "Examples:
  podwire dhcp daemon                              serve the plugins of this node
  podwire dhcp daemon --timeout 30s                for a slow DHCP server
  podwire dhcp daemon --host-prefix /host          in a container with the node's root at /host

The plugin connects to the socket of the daemon; set daemonSocketPath in its config if the path is
not the default. systemd can open the socket and start the daemon when a plugin connects
(podwire-dhcp.socket). The daemon keeps its leases in /var/lib/podwire/dhcp and resumes them at its
next start. SIGTERM ends the daemon and changes nothing for the pods.

The daemon logs events of leases: event=bound, renewed, lost, released, resumed, forgotten.";

#[derive(Debug, Subcommand)]
pub(crate) enum Dhcp {
    /// Get and renew DHCP leases for pods.
    #[command(after_help = EXAMPLES)]
    Daemon(Daemon),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Daemon {
    /// Socket for plugins, if systemd does not pass one.
    #[arg(long, value_name = "PATH", alias = "socketpath", default_value = "/run/cni/dhcp.sock")]
    socket_path: PathBuf,
    /// Path of the node's root, prepended to the paths of the socket, namespaces and leases.
    #[arg(long, value_name = "DIR", alias = "hostprefix")]
    host_prefix: Option<PathBuf>,
    /// File for the process id.
    #[arg(long, value_name = "PATH", alias = "pidfile")]
    pid_file: Option<PathBuf>,
    /// Time limit of an ADD for the answer of a server.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse)]
    timeout: Duration,
    /// Longest interval between two retransmissions; intervals double up to it.
    #[arg(long, value_name = "TIME", alias = "resendmax", default_value = "62s", value_parser = duration::parse)]
    resend_max: Duration,
}

impl Dhcp {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let Dhcp::Daemon(daemon) = self;
        let settings = podwire_dhcp::Settings {
            socket: daemon.socket_path,
            host_prefix: daemon.host_prefix.unwrap_or_default(),
            pid_file: daemon.pid_file,
            timeout: daemon.timeout,
            resend_max: daemon.resend_max,
        };
        let failed = |error: podwire_dhcp::Error| {
            Failure::new(
                "podwire dhcp daemon cannot run",
                podwire_cni_spec::Error::new(podwire_cni_spec::code::IO, error.to_string()),
            )
        };
        podwire_dhcp::run(&settings).map_err(failed)
    }
}

//! `podwire dhcp daemon`: the daemon of the `dhcp` plugin.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use crate::{duration, Failure};

const EXAMPLES: &str = "Examples:
  podwire dhcp daemon                              serve plugins on this node
  podwire dhcp daemon --timeout 30s                a network whose DHCP server is slow
  podwire dhcp daemon --host-prefix /host          in a container that sees the node's root as /host

The plugin finds the daemon by its socket: `daemonSocketPath` in the config, if that is not the default. systemd can open the
socket and start the daemon when a plugin connects (podwire-dhcp.socket). Leases are kept in /var/lib/podwire/dhcp; a daemon
that is started again goes on with them. SIGTERM ends it, and changes nothing for the pods.

What happens to leases is told on standard error: event=bound, renewed, lost, released, resumed, forgotten.";

#[derive(Debug, Subcommand)]
pub(crate) enum Dhcp {
    /// Get leases for pods from DHCP servers, and keep them.
    #[command(after_help = EXAMPLES)]
    Daemon(Daemon),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Daemon {
    /// Where plugins connect, unless systemd passes a socket on.
    #[arg(long, value_name = "PATH", alias = "socketpath", default_value = "/run/cni/dhcp.sock")]
    socket_path: PathBuf,
    /// Where this process sees the node's root: it stands before the paths of the socket, of pods and of leases.
    #[arg(long, value_name = "DIR", alias = "hostprefix")]
    host_prefix: Option<PathBuf>,
    /// A file for the number of the process.
    #[arg(long, value_name = "PATH", alias = "pidfile")]
    pid_file: Option<PathBuf>,
    /// How long an ADD waits for a server.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse)]
    timeout: Duration,
    /// The longest wait between two tries to find a server; waits double up to it.
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
                "the DHCP daemon cannot work",
                podwire_cni_spec::Error::new(podwire_cni_spec::code::IO, error.to_string()),
            )
        };
        podwire_dhcp::run(&settings).map_err(failed)
    }
}

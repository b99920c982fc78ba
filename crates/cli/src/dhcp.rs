//! `podwire dhcp daemon`: the daemon of the dhcp plugin.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use crate::duration;
use crate::failure::Failure;

const EXAMPLES: &str = "Examples:
  podwire dhcp daemon                              serve the plugins of this node
  podwire dhcp daemon --resend-timeout 30s         an ADD fails after 30 s without a server
  podwire dhcp daemon --host-prefix /host          in a container with the node's root at /host

The plugin connects to the socket of the daemon; set daemonSocketPath in its config if the path is
not the default. systemd can open the socket and start the daemon when a plugin connects
(podwire-dhcp.socket). The daemon keeps its leases in /var/lib/podwire/dhcp and resumes them at its
next start. SIGTERM ends the daemon and changes nothing for the pods.

`/opt/cni/bin/dhcp daemon` starts this daemon too, with the flags of the Go plugin (-socketpath,
-hostprefix, -pidfile, -timeout, -resendmax, -resendtimeout, -broadcast).

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
    #[arg(long, value_name = "DIR", alias = "hostprefix", default_value = "", hide_default_value = true)]
    host_prefix: OsString,
    /// File for the process id: an absolute path.
    #[arg(long, value_name = "PATH", alias = "pidfile", default_value = "", hide_default_value = true)]
    pid_file: OsString,
    /// Time limit for the answer to one request; then the daemon looks for a server again.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse)]
    timeout: Duration,
    /// Longest interval between two retransmissions; intervals double up to it.
    #[arg(long, value_name = "TIME", alias = "resendmax", default_value = "62s", value_parser = duration::parse)]
    resend_max: Duration,
    /// Time limit of an ADD, with all its requests to servers.
    #[arg(long, value_name = "TIME", alias = "resendtimeout", default_value = "208s", value_parser = duration::parse)]
    resend_timeout: Duration,
    /// Ask servers to answer by broadcast. The daemon always does; the flag is for units that set it.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    broadcast: Option<bool>,
}

impl Dhcp {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let Dhcp::Daemon(daemon) = self;
        let settings = podwire_dhcp::Settings {
            socket: daemon.socket_path,
            host_prefix: daemon.host_prefix.into(),
            pid_file: Some(PathBuf::from(daemon.pid_file)).filter(|path| !path.as_os_str().is_empty()),
            timeout: daemon.timeout,
            resend_max: daemon.resend_max,
            resend_timeout: daemon.resend_timeout,
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(subcommand)]
        dhcp: Dhcp,
    }

    fn parse(args: &str) -> Daemon {
        let args = ["dhcp", "daemon"].into_iter().chain(args.split_whitespace());
        let Dhcp::Daemon(daemon) = Program::try_parse_from(args).unwrap().dhcp;
        daemon
    }

    /// The defaults are those of the Go daemon: an ADD waits 208 s for a late server.
    #[test]
    fn the_flags_of_the_go_plugin_are_understood() {
        let seconds = Duration::from_secs;
        let daemon = parse("");
        assert_eq!(daemon.socket_path, PathBuf::from("/run/cni/dhcp.sock"));
        assert_eq!(
            (daemon.timeout, daemon.resend_max, daemon.resend_timeout),
            (seconds(10), seconds(62), seconds(208))
        );
        let daemon = parse(
            "--pidfile /run/d.pid --hostprefix=/host --socketpath /run/s --timeout=5s --resendmax 1m2s \
             --resendtimeout=3m28s --broadcast",
        );
        assert_eq!((daemon.pid_file, daemon.host_prefix), ("/run/d.pid".into(), "/host".into()));
        assert_eq!(daemon.socket_path, PathBuf::from("/run/s"));
        assert_eq!(
            (daemon.timeout, daemon.resend_max, daemon.resend_timeout),
            (seconds(5), seconds(62), seconds(208))
        );
        assert_eq!(daemon.broadcast, Some(true));
        assert_eq!(parse("--broadcast=false --hostprefix=").broadcast, Some(false));
    }
}

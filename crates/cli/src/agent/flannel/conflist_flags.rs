//! The flags for the files that the agent writes for plugins and runtimes when the node is ready.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ipnet::IpNet;
use podwire_agent::flannel::{Chain, Conflist, NotReady};
use podwire_cni_spec::Version;

#[derive(Debug, Args)]
#[command(next_help_heading = "CNI")]
pub(super) struct ConflistFlags {
    /// File with the node's pod CIDR and MTU, for the flannel plugin.
    #[arg(
        long,
        value_name = "FILE",
        env = "FLANNELD_SUBNET_FILE",
        default_value = "/run/flannel/subnet.env",
        hide_env = true
    )]
    pub(super) subnet_file: PathBuf,
    /// Plugin chain of the conflist that the agent writes when the routes are set up.
    #[arg(long, value_name = "CHAIN", default_value = "none")]
    cni_network: Network,
    /// While the node is not ready: withdraw the conflist, or keep it and fail STATUS with code 50.
    #[arg(long, value_name = "HOW", default_value = "withdraw")]
    not_ready: WhileNotReady,
    /// Path of the conflist.
    #[arg(long, value_name = "FILE", default_value = "/etc/cni/net.d/10-podwire.conflist")]
    cni_conflist: PathBuf,
    /// Name of the network in the conflist.
    #[arg(long, value_name = "NAME", default_value = "cbr0")]
    cni_network_name: String,
    /// CNI version of the conflist [default: 1.0.0, or 1.1.0 with --not-ready status].
    #[arg(long, value_name = "VERSION")]
    cni_version: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WhileNotReady {
    Withdraw,
    Status,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Network {
    None,
    Flannel,
    Bridge,
    Ptp,
}

impl ConflistFlags {
    pub(super) fn writes_conflist(&self) -> bool {
        self.cni_network != Network::None
    }

    /// Runtimes send STATUS only to networks of version 1.1.0 and newer. With an older version and `--not-ready status`
    /// the node would always look ready.
    pub(super) fn check(&self) -> podwire_subnets::Result<()> {
        let wrong = |why: String| podwire_subnets::Error::Config { origin: "--cni-version".into(), why };
        let version = self.version();
        let version = Version::parse(version)
            .ok_or_else(|| wrong(format!("{version:?} is not a version of the CNI specification")))?;
        if self.not_ready == WhileNotReady::Status && !version.has_status() {
            return Err(wrong(format!("{version} has no STATUS: use 1.1.0, or --not-ready withdraw")));
        }
        Ok(())
    }

    /// The conflist to write. `source_prefixes` is `None` if policies are not enforced.
    pub(super) fn conflist(&self, source_prefixes: Option<Vec<IpNet>>) -> Option<Conflist> {
        let chain = match self.cni_network {
            Network::None => return None,
            Network::Flannel => Chain::Flannel,
            Network::Bridge => Chain::Bridge,
            Network::Ptp => Chain::Ptp,
        };
        Some(Conflist {
            path: self.cni_conflist.clone(),
            name: self.cni_network_name.clone(),
            chain,
            version: self.version().into(),
            not_ready: match self.not_ready {
                WhileNotReady::Withdraw => NotReady::Withdraw,
                WhileNotReady::Status => NotReady::Status,
            },
            policy: source_prefixes,
        })
    }

    fn version(&self) -> &str {
        match (&self.cni_version, self.not_ready) {
            (Some(version), _) => version,
            (None, WhileNotReady::Withdraw) => "1.0.0",
            (None, WhileNotReady::Status) => "1.1.0",
        }
    }
}

//! The flags for flannel's keys in etcd.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use podwire_subnets::EtcdOptions;

#[derive(Debug, Args)]
#[command(next_help_heading = "etcd")]
pub(super) struct EtcdFlags {
    /// Endpoints of etcd, in the order in which they are tried.
    #[arg(
        long,
        value_name = "URL,URL",
        env = "FLANNELD_ETCD_ENDPOINTS",
        hide_env = true,
        value_delimiter = ','
    )]
    #[arg(default_value = "http://127.0.0.1:4001,http://127.0.0.1:2379")]
    etcd_endpoints: Vec<String>,
    /// Prefix of flannel's keys.
    #[arg(
        long,
        value_name = "KEY",
        env = "FLANNELD_ETCD_PREFIX",
        default_value = "/coreos.com/network",
        hide_env = true
    )]
    etcd_prefix: String,
    /// Private key of the client certificate.
    #[arg(long, value_name = "FILE", env = "FLANNELD_ETCD_KEYFILE", hide_env = true)]
    etcd_keyfile: Option<PathBuf>,
    /// Client certificate.
    #[arg(long, value_name = "FILE", env = "FLANNELD_ETCD_CERTFILE", hide_env = true)]
    etcd_certfile: Option<PathBuf>,
    /// CA certificates that sign etcd's certificate.
    #[arg(long, value_name = "FILE", env = "FLANNELD_ETCD_CAFILE", hide_env = true)]
    etcd_cafile: Option<PathBuf>,
    /// User name for etcd.
    #[arg(long, value_name = "NAME", env = "FLANNELD_ETCD_USERNAME", hide_env = true)]
    etcd_username: Option<String>,
    /// Password for etcd; prefer the variable FLANNELD_ETCD_PASSWORD.
    #[arg(
        long,
        value_name = "PASSWORD",
        env = "FLANNELD_ETCD_PASSWORD",
        hide_env = true,
        hide_env_values = true
    )]
    etcd_password: Option<String>,
    /// Minutes before its expiry at which the subnet lease is renewed.
    #[arg(
        long,
        value_name = "MINUTES",
        env = "FLANNELD_SUBNET_LEASE_RENEW_MARGIN",
        default_value_t = 60,
        hide_env = true
    )]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1439))]
    subnet_lease_renew_margin: u64,
}

impl EtcdFlags {
    pub(super) fn options(&self) -> EtcdOptions {
        let user = self.etcd_username.clone().filter(|name| !name.is_empty());
        EtcdOptions {
            endpoints: self.etcd_endpoints.clone(),
            prefix: self.etcd_prefix.clone(),
            ca_file: self.etcd_cafile.clone(),
            cert_file: self.etcd_certfile.clone(),
            key_file: self.etcd_keyfile.clone(),
            user: user.map(|name| (name, self.etcd_password.clone().unwrap_or_default())),
            renew_margin: Duration::from_secs(60 * self.subnet_lease_renew_margin),
            ..EtcdOptions::default()
        }
    }
}

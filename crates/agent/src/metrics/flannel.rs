//! Metrics of flannel mode: the source of nodes, the pod CIDR and the plugins' calls.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::OnceLock;
use std::time::Duration;

use ipnet::IpNet;
use podwire_agent_ipc::calls::Call;
use podwire_agent_ipc::status::Status;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::{seconds, Labels};

pub(crate) struct FlannelMetrics {
    source_current: Gauge,
    addresses: Gauge<f64, AtomicU64>,
    addresses_used: Gauge,
    convergence: Histogram,
    calls: Family<Labels, Histogram, fn() -> Histogram>,
    call_failures: Family<Labels, Counter>,
    /// host-local's directory, with a directory for each network.
    host_local_dir: OnceLock<PathBuf>,
}

impl FlannelMetrics {
    pub(super) fn register(all: &mut Registry) -> FlannelMetrics {
        let metrics = FlannelMetrics {
            source_current: Gauge::default(),
            addresses: Gauge::default(),
            addresses_used: Gauge::default(),
            convergence: seconds(),
            calls: Family::new_with_constructor(seconds),
            call_failures: Family::default(),
            host_local_dir: OnceLock::new(),
        };
        let text = "1 if the source of nodes answers";
        all.register("source_current", text, metrics.source_current.clone());
        all.register("pod_cidr_addresses", "Addresses of the node's pod CIDRs", metrics.addresses.clone());
        let text = "Addresses of the node's pod CIDRs that pods have";
        all.register("pod_cidr_addresses_used", text, metrics.addresses_used.clone());
        let text = "Time from a change in the source of nodes to the kernel";
        all.register_with_unit("convergence", text, Unit::Seconds, metrics.convergence.clone());
        let text = "Duration of a plugin's call, by verb and plugin; it includes the plugin's delegates";
        all.register_with_unit("plugin_call", text, Unit::Seconds, metrics.calls.clone());
        let text = "Plugin calls that failed, by verb, plugin and error code";
        all.register("plugin_call_failures", text, metrics.call_failures.clone());
        metrics
    }

    /// Sets the directory in which host-local keeps a file for each address that a pod has.
    pub(crate) fn set_host_local_dir(&self, dir: PathBuf) {
        let _ = self.host_local_dir.set(dir);
    }

    /// Counts a change of the source that is in the kernel now.
    pub(crate) fn converged(&self, took: Duration) {
        self.convergence.observe(took.as_secs_f64());
    }

    /// Counts a plugin's call.
    pub(crate) fn called(&self, call: &Call<'_>) {
        let mut labels = vec![("verb", call.verb.to_owned()), ("plugin", call.plugin.to_owned())];
        self.calls.get_or_create(&labels).observe(call.duration.as_secs_f64());
        if call.code != 0 {
            labels.push(("code", call.code.to_string()));
            self.call_failures.get_or_create(&labels).inc();
        }
    }

    pub(super) fn update(&self, status: &Status) {
        self.source_current.set(status.store.synced.into());
        let cidrs: Vec<IpNet> = status.pod_cidrs.iter().filter_map(|cidr| cidr.parse().ok()).collect();
        let size = |cidr: &IpNet| f64::from(cidr.max_prefix_len() - cidr.prefix_len()).exp2();
        self.addresses.set(cidrs.iter().map(size).sum());
        let used = self.host_local_dir.get().map_or(0, |dir| addresses_used(dir, &cidrs));
        self.addresses_used.set(used as i64);
    }
}

/// The number of addresses of `cidrs` that host-local has allocated, in all networks. A node's pod CIDR has a few
/// hundred addresses, so the files are counted when the metrics are read.
fn addresses_used(dir: &Path, cidrs: &[IpNet]) -> usize {
    let networks = fs::read_dir(dir).into_iter().flatten().flatten();
    let files = networks.filter_map(|network| fs::read_dir(network.path()).ok()).flatten().flatten();
    let address = |file: fs::DirEntry| -> Option<IpAddr> { file.file_name().to_str()?.parse().ok() };
    files.filter_map(address).filter(|ip| cidrs.iter().any(|cidr| cidr.contains(ip))).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_this_nodes_pod_cidrs_count() {
        let dir = std::env::temp_dir().join(format!("podwire-host-local-{}", std::process::id()));
        for (network, file) in [
            ("cbr0", "10.244.7.2"),
            ("cbr0", "10.244.7.3"),
            ("cbr0", "10.244.8.2"),
            ("cbr0", "fd00::7:2"),
            ("cbr0", "lock"),
            ("cbr0", "last_reserved_ip.0"),
            ("other", "10.244.7.9"),
        ] {
            fs::create_dir_all(dir.join(network)).unwrap();
            fs::write(dir.join(network).join(file), "").unwrap();
        }
        let cidrs: Vec<IpNet> = vec!["10.244.7.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()];
        assert_eq!(addresses_used(&dir, &cidrs), 4);
        assert_eq!(addresses_used(&dir, &[]), 0);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(addresses_used(&dir, &cidrs), 0, "the directory does not exist");
    }
}

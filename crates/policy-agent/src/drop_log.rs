//! Logs samples of dropped packets with the names of both pods, and of the Services of the receiver.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use podwire_netlink::sys;
use podwire_policy::{Direction, Protocol};
use tracing::field::display;
use tracing::info;

use crate::cluster_state::ClusterState;
use crate::dataplane::{DropSample, DropSamples, Nftables};
use crate::service_names::ServiceNames;
use crate::Result;

/// The log repeats the same line only after this time.
const REPEAT_AFTER: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct DropLog {
    samples: DropSamples,
    pub service_names: ServiceNames,
    /// The lines of the last [`REPEAT_AFTER`], with their times.
    recent: BTreeMap<LogLine, Instant>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LogLine {
    from: String,
    to: String,
    protocol: String,
    port: Option<u16>,
    direction: String,
    /// The Services of which the destination is an endpoint.
    endpoint_of: Option<String>,
    reason: String,
}

impl DropLog {
    /// For the network namespace of the calling thread.
    pub fn open() -> Result<DropLog> {
        let (samples, service_names) = (DropSamples::listen()?, ServiceNames::default());
        Ok(DropLog { samples, service_names, recent: BTreeMap::new() })
    }

    /// Logs the samples that have arrived.
    pub fn log_samples(&mut self, cluster: &ClusterState, tables: &Nftables) -> Result<()> {
        for sample in self.samples.read()? {
            let line = self.line(&sample, cluster, tables);
            self.recent.retain(|_, at| at.elapsed() < REPEAT_AFTER);
            if self.recent.contains_key(&line) {
                continue;
            }
            let LogLine { from, to, protocol, port, direction, endpoint_of, reason } = &line;
            let endpoint_of = endpoint_of.as_ref().map(display);
            info!(%from, %to, %protocol, port, %direction, endpoint_of, %reason, "packet dropped");
            self.recent.insert(line, Instant::now());
        }
        Ok(())
    }

    fn line(&self, sample: &DropSample, cluster: &ClusterState, tables: &Nftables) -> LogLine {
        let name = |ip: Option<IpAddr>| match ip {
            Some(ip) => cluster.pod_with_address(ip).unwrap_or_else(|| ip.to_string()),
            None => "unknown".into(),
        };
        let from = match sample.reason {
            Some(_) => name(sample.source),
            None => DropLog::spoofing_pod(sample, cluster),
        };
        LogLine {
            from,
            to: name(sample.destination),
            protocol: sample.protocol.clone(),
            port: sample.port,
            direction: sample.direction.to_string(),
            endpoint_of: self.endpoint_of(sample),
            reason: reason(sample, cluster, tables),
        }
    }

    /// The Services of which the destination is an endpoint.
    fn endpoint_of(&self, sample: &DropSample) -> Option<String> {
        let endpoint = SocketAddr::new(sample.destination?, sample.port?);
        self.service_names.text(Protocol::named(&sample.protocol)?, endpoint)
    }

    /// The pod that used another source address, known by the device of the packet, and that address.
    fn spoofing_pod(sample: &DropSample, cluster: &ClusterState) -> String {
        // The plugins wait for this thread, so it must not wait for the RTNL lock as a netlink request would.
        let device = sample.device.and_then(|index| sys::interface_name(index).ok());
        let pod = device.and_then(|name| cluster.pod_on_device(&name));
        let source = sample.source.map_or_else(|| "unknown".into(), |ip| ip.to_string());
        match pod {
            Some(pod) => format!("{pod} as {source}"),
            None => source,
        }
    }
}

/// Why a packet was dropped. Of an address without a listed pod it says what is known of the pod.
fn reason(sample: &DropSample, cluster: &ClusterState, tables: &Nftables) -> String {
    let reason = tables.reason(sample);
    if !tables.is_unknown_pod(sample) {
        return reason.into();
    }
    let end = match sample.direction {
        Direction::Egress => sample.source,
        Direction::Ingress => sample.destination,
    };
    match end.and_then(|ip| cluster.pod_with_address(ip)) {
        Some(pod) if cluster.is_gone(&pod) => format!("{pod} is gone from the API and still runs"),
        Some(pod) => format!("the policies of {pod} are not known yet"),
        None => reason.into(),
    }
}

impl AsFd for DropLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.samples.as_fd()
    }
}

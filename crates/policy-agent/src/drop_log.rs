//! Tells of dropped packets: some of them, as many as the kernel shows, each in a line with the names of both ends.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::dataplane::{Nftables, Sample, Samples};
use podwire_netlink::{rt, Socket};
use tracing::info;

use crate::cluster_state::ClusterState;
use crate::Result;

/// What was told is not told again for so long.
const SILENCE: Duration = Duration::from_secs(60);

/// Who listens to the kernel.
#[derive(Debug)]
pub(crate) struct DropLog {
    samples: Samples,
    links: Socket,
    /// What was told, and when.
    told: BTreeMap<Line, Instant>,
}

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    from: String,
    to: String,
    protocol: String,
    port: Option<u16>,
    direction: String,
    reason: String,
}

impl DropLog {
    /// For the namespace of the calling thread.
    pub fn open() -> Result<DropLog> {
        Ok(DropLog { samples: Samples::listen()?, links: Socket::route()?, told: BTreeMap::new() })
    }

    /// Tells of what was shown until now.
    pub fn tell(&mut self, world: &ClusterState, kernel: &Nftables) -> Result<()> {
        for sample in self.samples.read()? {
            let line = self.line(&sample, world, kernel);
            self.told.retain(|_, at| at.elapsed() < SILENCE);
            if self.told.contains_key(&line) {
                continue;
            }
            let Line { from, to, protocol, port, direction, reason } = &line;
            info!(%from, %to, %protocol, port, %direction, "a packet was dropped: {reason}");
            self.told.insert(line, Instant::now());
        }
        Ok(())
    }

    fn line(&mut self, sample: &Sample, world: &ClusterState, kernel: &Nftables) -> Line {
        let named = |ip: Option<IpAddr>| match ip {
            Some(ip) => world.pod_at(ip).unwrap_or_else(|| ip.to_string()),
            None => "nobody".into(),
        };
        let from = match sample.reason {
            Some(_) => named(sample.source),
            None => self.liar(sample, world),
        };
        Line {
            from,
            to: named(sample.destination),
            protocol: sample.protocol.clone(),
            port: sample.port,
            direction: sample.direction.to_string(),
            reason: kernel.reason(sample).into(),
        }
    }

    /// Who sent with another's address: known by the cable through which it came.
    fn liar(&mut self, sample: &Sample, world: &ClusterState) -> String {
        let link = sample.device.and_then(|index| rt::link::by_index(&mut self.links, index).ok());
        let pod = link.and_then(|link| world.pod_behind(&link.name));
        let claimed = sample.source.map_or_else(|| "nobody".into(), |ip| ip.to_string());
        match pod {
            Some(pod) => format!("{pod} as {claimed}"),
            None => claimed,
        }
    }
}

impl AsFd for DropLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.samples.as_fd()
    }
}

//! The thread that looks for kube-proxy and its leftovers, reports them, and removes them if that is wanted.
//!
//! It begins when the Services are in the kernel for the first time. Then it looks again whenever the kernel reports a
//! change of a table or chain with kube-proxy's names, and at intervals for what the kernel does not report.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use podwire_netlink::{nft, Socket};
use podwire_reconcile::{Handle, Reconciler};
use tracing::{info, warn};

use super::names::{is_proxy_chain, TABLES};
use super::{find, find_running, remove, Leftover, Sign};
use crate::{Error, Result};

/// The interval between two looks without an event. A process that starts and a chain of iptables-legacy cause none; the
/// device is looked for with them.
const RESYNC: Duration = Duration::from_secs(60);

/// The last problem about kube-proxy, shared with the handles of the services agent.
#[derive(Clone, Debug, Default)]
pub(crate) struct KubeProxyStatus(Arc<Mutex<Option<String>>>);

impl KubeProxyStatus {
    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is wrong, and what to do about it.
    pub fn problem(&self) -> Option<String> {
        self.lock().clone()
    }
}

/// The Services are in the kernel.
#[derive(Debug)]
pub(crate) struct Applied;

/// The state of the thread.
pub(crate) struct KubeProxyThread {
    nft: Socket,
    route: Socket,
    notices: Socket,
    /// Whether leftovers are to be removed. Cleared when that is done.
    removes: bool,
    is_applied: bool,
    status: KubeProxyStatus,
}

impl KubeProxyThread {
    /// Starts the thread in the network namespace of the caller.
    pub fn start(removes: bool, status: KubeProxyStatus) -> Result<Handle<Applied>> {
        let mut notices = Socket::netfilter()?;
        notices.subscribe(nft::GROUP)?;
        let (nft, route) = (Socket::netfilter()?, Socket::route()?);
        let thread = KubeProxyThread { nft, route, notices, removes, is_applied: false, status };
        podwire_reconcile::spawn("kube-proxy", RESYNC, thread).map_err(Error::Thread)
    }
}

/// What the thread found.
pub(crate) struct Found {
    running: Option<Sign>,
    /// Why leftovers could not be removed.
    failures: Vec<String>,
    leftovers: Vec<Leftover>,
}

impl Reconciler for KubeProxyThread {
    type Message = Applied;
    /// `None` until the Services are in the kernel.
    type Report = Option<Found>;
    type Error = Error;

    fn receive(&mut self, _: Applied) {
        self.is_applied = true;
    }

    fn reconcile(&mut self) -> Result<Option<Found>> {
        if !self.is_applied {
            return Ok(None);
        }
        let running = find_running();
        let mut failures = Vec::new();
        if self.removes && running.is_none() {
            let removal = remove(&mut self.nft, &mut self.route)?;
            self.removes = !removal.failures.is_empty();
            failures = removal.failures.iter().map(Error::to_string).collect();
        }
        Ok(Some(Found { running, failures, leftovers: find(&mut self.nft, &mut self.route)? }))
    }

    fn report(&mut self, outcome: Result<Option<Found>>, _: Duration) {
        let problem = match outcome {
            Ok(None) => return,
            Ok(Some(found)) => found.problem(),
            Err(error) => Some(error.to_string()),
        };
        let before = std::mem::replace(&mut *self.status.lock(), problem.clone());
        match problem {
            Some(problem) if before.as_ref() != Some(&problem) => warn!("{problem}"),
            None if before.is_some() => info!("kube-proxy left nothing any more"),
            _ => {}
        }
    }

    fn event_sources(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.notices.as_fd()]
    }

    fn handle_events(&mut self, _: &[bool]) -> Result<bool> {
        let mut concerns = false;
        let complete = self.notices.drain(|frame| {
            concerns |= nft::subject(frame).is_some_and(|(table, chain)| {
                TABLES.contains(&table) || chain.as_deref().is_some_and(is_proxy_chain)
            });
        })?;
        Ok(concerns || !complete)
    }
}

impl Found {
    fn problem(&self) -> Option<String> {
        if let Some(sign) = &self.running {
            return Some(format!(
                "kube-proxy runs beside the Services of this agent: {sign}; stop it, or start the agent without --services"
            ));
        }
        let list = |removable: bool| {
            let some = self.leftovers.iter().filter(|leftover| leftover.is_removable() == removable);
            some.map(Leftover::to_string).collect::<Vec<_>>().join("; ")
        };
        let advice = [
            (true, "start the agent once with --cleanup-kube-proxy to remove it"),
            (false, "remove it as docs/migration-from-kube-proxy.md shows"),
        ];
        // A failure names its leftover.
        let listed = advice.iter().filter(|(removable, _)| !removable || self.failures.is_empty());
        let mut parts = self.failures.clone();
        for (removable, advice) in listed {
            let leftovers = list(*removable);
            if !leftovers.is_empty() {
                parts.push(format!("kube-proxy left {leftovers}: {advice}"));
            }
        }
        (!parts.is_empty()).then(|| parts.join(". "))
    }
}

#[cfg(test)]
mod tests {
    use podwire_ip::IpFamily;

    use super::*;

    #[test]
    fn a_problem_names_what_was_found_and_what_to_do() {
        let chains = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let nat = nft::Table::named(nft::Family::Ip, "nat");
        let table = Leftover::Table(TABLES[0].clone());
        let legacy = Leftover::LegacyChains(IpFamily::V6, "nat", chains(&["KUBE-SERVICES"]));
        let sign = Sign::Port("127.0.0.1:10249".parse().unwrap(), "ipvs".into());
        for (running, leftovers, expected) in [
            (None, vec![], &[][..]),
            (Some(sign), vec![table.clone()], &["kube-proxy runs", "127.0.0.1:10249", "\"ipvs\"", "stop it"]),
            (None, vec![table.clone()], &["left table ip kube-proxy: ", "--cleanup-kube-proxy"]),
            (
                None,
                vec![
                    Leftover::Chains(nat, chains(&["KUBE-MARK-MASQ", "KUBE-SERVICES"])),
                    Leftover::Device(3),
                ],
                &[
                    "2 chains, KUBE-MARK-MASQ among them, of iptables-nft in table ip nat",
                    "kube-ipvs0 with 3 IPVS services",
                ],
            ),
            (
                None,
                vec![table, legacy],
                &[
                    "--cleanup-kube-proxy",
                    "chain KUBE-SERVICES of ip6tables-legacy in table nat",
                    "docs/migration-from-kube-proxy.md",
                ],
            ),
        ] {
            let found = Found { running, failures: Vec::new(), leftovers };
            let problem = found.problem();
            assert_eq!(problem.is_some(), !expected.is_empty());
            let text = problem.unwrap_or_default();
            assert!(expected.iter().all(|part| text.contains(part)), "{text}");
        }
    }
}

//! Where the daemon reports what it did: `subnet.env`, the conflist, the status, the metrics and Kubernetes events.

use podwire_agent_ipc::status::{Phase, UnreachableNode};
use podwire_subnets::{Severity, Source, SubnetEnv};
use tracing::{error, info, warn};

use super::{pod_cidrs, uplink_text, Daemon, NodeNetwork};
use crate::flannel::conflist::{self, NotReady};
use crate::flannel::routes::Applied;
use crate::{pod_mtu, Result};

impl Daemon {
    /// Announces that the node can carry pod traffic. The conflist is written last.
    pub(super) async fn announce(&mut self, network: &mut NodeNetwork, applied: &Applied) -> Result<()> {
        self.metrics.reconciled(applied.took, applied.changes, &applied.objects);
        if let (Some(since), Some(metrics)) = (network.changed_at.take(), self.metrics.flannel()) {
            metrics.converged(since.elapsed());
        }
        let masquerades = self.settings.firewall.masquerade;
        let env = SubnetEnv::new(&network.conf, network.own.pod_cidrs, applied.mtu, masquerades);
        env.write(&self.settings.subnet_file)?;
        let mut problems = applied.failed.clone();
        problems.extend(pod_mtu::problem(&applied.oversized_pods, applied.mtu));
        if let Some(conflist) = &self.settings.conflist {
            if conflist.not_ready == NotReady::Status {
                conflist::write_readiness(&self.settings.readiness_file, None)?;
            }
            if conflist.write(&env, &self.settings.readiness_file)? {
                info!(path = %conflist.path.display(), "conflist written");
            }
            problems.extend(conflist.competing_configs().iter().map(|other| {
                format!(
                    "{} sorts before {}: the runtime uses that network; remove the file",
                    other.display(),
                    conflist.path.display()
                )
            }));
        }
        let was_ready = self.show(network, applied, problems.clone());
        for problem in &problems {
            self.report_once("PodNetwork", problem).await;
        }
        if problems.is_empty() && !was_ready {
            // A problem that occurs again is reported again.
            self.reported.clear();
        }
        if let (Source::Kubernetes(kubernetes), false) = (&self.source, was_ready) {
            if self.settings.set_network_available {
                kubernetes.set_network_available().await?;
            }
            let text = format!("routes to {} nodes are set up; the node accepts pods", applied.peers);
            drop(kubernetes.event(Severity::Normal, "PodNetworkReady", &text).await);
        }
        Ok(())
    }

    /// Updates the status. Returns whether the node was ready before.
    fn show(&self, network: &NodeNetwork, applied: &Applied, problems: Vec<String>) -> bool {
        let unreachable = applied.unreachable.iter();
        let unreachable: Vec<UnreachableNode> = unreachable
            .map(|(node, reason)| UnreachableNode { node: node.clone(), reason: reason.clone() })
            .collect();
        let mut status = self.status.lock();
        for one in unreachable.iter().filter(|one| !status.unreachable.contains(one)) {
            warn!(node = one.node, reason = one.reason, "node is unreachable");
        }
        let was_ready = status.phase == Phase::Ready;
        status.phase = Phase::Ready;
        status.mtu = applied.mtu;
        status.oversized_pods.clone_from(&applied.oversized_pods);
        status.peers = applied.peers;
        status.unreachable = unreachable;
        status.uplinks = applied.uplinks.iter().map(uplink_text).collect();
        status.pod_cidrs = pod_cidrs(&network.own);
        status.problems = problems;
        was_ready
    }

    /// Tells the runtime that the node cannot carry traffic.
    pub(super) async fn withdraw(&mut self, why: &str) {
        if let Some(conflist) = &self.settings.conflist {
            let written = match conflist.not_ready {
                NotReady::Withdraw => conflist.withdraw().map(drop),
                NotReady::Status => conflist::write_readiness(&self.settings.readiness_file, Some(why)),
            };
            if let Err(error) = written {
                error!(%error, "the runtime still treats the node as ready");
            }
        }
        self.status.lock().phase = Phase::Broken;
        self.report_failure("PodNetwork", why.into()).await;
    }

    pub(super) async fn report_failure(&mut self, reason: &str, problem: String) {
        self.status.lock().problems = vec![problem.clone()];
        if self.settings.conflist.as_ref().is_some_and(|list| list.not_ready == NotReady::Status) {
            // Routes of the previous agent still work, so a file that says ready stays.
            drop(conflist::write_readiness_at_start(&self.settings.readiness_file, &problem));
        }
        self.report_once(reason, &problem).await;
    }

    /// Logs a problem and sends a Kubernetes event, once and not at each retry.
    pub(super) async fn report_once(&mut self, reason: &str, problem: &str) {
        if !self.reported.insert(problem.into()) {
            return;
        }
        error!("{problem}");
        if let Source::Kubernetes(kubernetes) = &self.source {
            // The server may be the problem.
            drop(kubernetes.event(Severity::Warning, reason, problem).await);
        }
    }
}

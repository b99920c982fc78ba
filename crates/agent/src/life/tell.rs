//! Who is told what an agent has done, or could not do: the runtime, the board, the metrics, the cluster's events.

use podwire_subnets::{Severity, Source, SubnetEnv};
use tracing::{error, info, warn};

use super::{ranges, uplink_text, Ground, Life};
use crate::roads::Made;
use crate::status::Phase;
use crate::{announcement, NotReady, Result};

impl Life {
    /// The roads are open: pods may come.
    pub(super) async fn announce(&mut self, ground: &mut Ground, made: &Made) -> Result<()> {
        self.metrics.compared(made.took, made.changes);
        self.metrics.holds(&made.objects);
        if let Some(news) = ground.news.take() {
            self.metrics.converged(news.elapsed());
        }
        let masquerades = self.settings.firewall.masquerade;
        let env = SubnetEnv::new(&ground.conf, ground.own.pod_cidrs, made.mtu, masquerades);
        env.write(&self.settings.subnet_file)?;
        let mut problems = made.failed.clone();
        if let Some(conflist) = &self.settings.conflist {
            if conflist.not_ready == NotReady::Status {
                announcement::tell_plugins(&self.settings.readiness_file, None)?;
            }
            if conflist.write(&env, &self.settings.readiness_file)? {
                info!(path = %conflist.path.display(), "pods may come");
            }
            let rivals = conflist.rivals();
            problems.extend(rivals.iter().map(|rival| {
                format!(
                    "{} stands before {}: the runtime takes that network",
                    rival.display(),
                    conflist.path.display()
                )
            }));
        }
        let was_ready = self.show(ground, made, problems.clone());
        for problem in &problems {
            self.tell("PodNetwork", problem).await;
        }
        if problems.is_empty() && !was_ready {
            // Whatever happens from now on is news again.
            self.told.clear();
        }
        if let (Source::Kubernetes(kubernetes), false) = (&self.source, was_ready) {
            if self.settings.set_available {
                kubernetes.set_network_available().await?;
            }
            let text = format!("roads to {} nodes are open: pods may come", made.peers);
            drop(kubernetes.event(Severity::Normal, "PodNetworkReady", &text).await);
        }
        Ok(())
    }

    /// On the board; returns whether pods could come before.
    fn show(&self, ground: &Ground, made: &Made, problems: Vec<String>) -> bool {
        self.metrics.ready.set(1);
        self.metrics.peers.set(made.peers as i64);
        self.metrics.refused.set(made.refused.len() as i64);
        let mut status = self.board.write();
        for (peer, why) in made.refused.iter().filter(|one| !status.refused.contains(one)) {
            warn!(peer, why, "no road");
        }
        let was_ready = status.phase == Phase::Ready;
        status.phase = Phase::Ready;
        status.mtu = made.mtu;
        status.peers = made.peers;
        status.refused.clone_from(&made.refused);
        status.uplinks = made.uplinks.iter().map(uplink_text).collect();
        status.ranges = ranges(&ground.own);
        status.problems = problems;
        was_ready
    }

    /// The node cannot carry traffic: the runtime is told so.
    pub(super) async fn withdraw(&mut self, why: &str) {
        if let Some(conflist) = &self.settings.conflist {
            let told = match conflist.not_ready {
                NotReady::Withdraw => conflist.withdraw().map(drop),
                NotReady::Status => announcement::tell_plugins(&self.settings.readiness_file, Some(why)),
            };
            if let Err(error) = told {
                error!(%error, "the runtime does not know that pods may not come");
            }
        }
        self.metrics.ready.set(0);
        self.board.write().phase = Phase::Broken;
        self.problem("PodNetwork", why.into()).await;
    }

    pub(super) async fn problem(&mut self, reason: &str, what: String) {
        self.board.write().problems = vec![what.clone()];
        if self.settings.conflist.as_ref().is_some_and(|list| list.not_ready == NotReady::Status) {
            // Roads that were open before stay open, and it is not said here that they are not.
            drop(announcement::tell_plugins_at_start(&self.settings.readiness_file, &what));
        }
        self.tell(reason, &what).await;
    }

    /// Once, not with every try.
    pub(super) async fn tell(&mut self, reason: &str, what: &str) {
        if !self.told.insert(what.into()) {
            return;
        }
        error!("{what}");
        if let Source::Kubernetes(kubernetes) = &self.source {
            // Who cannot reach the server cannot tell it either.
            drop(kubernetes.event(Severity::Warning, reason, what).await);
        }
    }
}

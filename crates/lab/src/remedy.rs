//! Healing: the cause of what was broken goes, and it is waited until the lab is whole again.

use std::fs;
use std::io::ErrorKind;
use std::time::Duration;

use crate::harm::FOREIGN;
use crate::{Broken, Error, Fault, Lab, Result};

/// Agents need less than two seconds; a machine may be busy.
const PATIENCE: Duration = Duration::from_secs(40);
const ECHO: Duration = Duration::from_millis(400);

/// What was healed.
#[derive(Clone, Debug)]
pub struct Healed {
    /// The causes that were taken away.
    pub causes: Vec<Broken>,
    /// How long it took from then on until every agent was content and all pods reached each other.
    pub took: Duration,
}

impl Lab {
    /// Takes away the causes of all that was broken, and waits until the lab is whole.
    pub fn heal(&mut self) -> Result<Healed> {
        let mut causes = Vec::new();
        while let Some(broken) = self.state.broken.last().cloned() {
            // Written down first: addresses follow from it. What fails here is tried again by the next.
            self.state.broken.pop();
            if let Err(error) = self.relieve(&broken) {
                self.state.broken.push(broken);
                self.save()?;
                return Err(error);
            }
            self.save()?;
            causes.push(broken);
        }
        let took = self.wait_until_none(PATIENCE, |lab| lab.flaw().or_else(|| lab.unreached()))?;
        Ok(Healed { causes, took })
    }

    fn relieve(&mut self, broken: &Broken) -> Result<()> {
        let Broken { fault, node } = broken;
        match fault {
            // A machine that was started anew meanwhile has its agent.
            Fault::KillAgent if self.state.agents.contains_key(node) => Ok(()),
            Fault::KillAgent => self.start_agent(node),
            Fault::ChangeAddress | Fault::LinkDown => self.dress(node),
            Fault::RemoveNode => self.bring_back(node),
            Fault::StopStore => self.start_etcd(),
            Fault::DuplicateRange => self.pull_out(&self.ranges(node)?),
            Fault::ForeignConfig => match fs::remove_file(self.file(node, FOREIGN)?) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    Err(Error::file("remove", FOREIGN)(error))
                }
                _ => Ok(()),
            },
            Fault::DeleteDevice
            | Fault::FlushRoutes
            | Fault::FlushRules
            | Fault::PoisonNeighbours
            | Fault::RebootNode => Ok(()),
        }
    }

    /// Somebody who does not reach somebody, but for nodes between which there cannot be a road. Where there are policies, not
    /// everybody should.
    fn unreached(&self) -> Option<String> {
        if self.state.plan.pods == 0 || self.state.plan.policies.is_some() {
            return None;
        }
        let refused = |node: &String| self.word(node).is_some_and(|word| !word.refused.is_empty());
        if self.state.plan.backend == "alloc" || self.nodes().iter().any(refused) {
            return None;
        }
        match self.feel(ECHO) {
            Ok(report) => report.failures().next().map(|failure| report.sentence(failure)),
            Err(error) => Some(error.to_string()),
        }
    }
}

//! Healing: removes injected faults and waits until the lab is healthy.

use std::fs;
use std::io::ErrorKind;
use std::time::Duration;

use podwire_fs::FileError;

use crate::inject::FOREIGN_CONFLIST;
use crate::{ActiveFault, Error, Fault, Lab, Result};

/// Generous, for a busy machine: agents need less than two seconds.
const TIMEOUT: Duration = Duration::from_secs(40);
const PING_TIMEOUT: Duration = Duration::from_millis(400);

/// The result of healing.
#[derive(Clone, Debug)]
pub struct Healed {
    /// The faults that were removed.
    pub faults: Vec<ActiveFault>,
    /// The time from then until every agent was healthy and all pods reached each other.
    pub took: Duration,
}

impl Lab {
    /// Removes all faults, and waits until the lab is healthy. A pod that does not run is an error.
    pub fn heal(&mut self) -> Result<Healed> {
        let mut faults = Vec::new();
        while let Some(fault) = self.state.faults.last().cloned() {
            // Removed from the state first: the addresses of the node depend on it. After an error it is put back, and the
            // next call tries again.
            self.state.faults.pop();
            if let Err(error) = self.remove_fault(&fault) {
                self.state.faults.push(fault);
                self.save()?;
                return Err(error);
            }
            self.save()?;
            faults.push(fault);
        }
        // No agent starts a pod again, so waiting would not help.
        let pods = self.pod_problems();
        if !pods.is_empty() {
            return Err(Error::Pods { lab: self.state.spec.name.clone(), problems: pods });
        }
        let took =
            self.wait_until_none(TIMEOUT, |lab| lab.first_problem().or_else(|| lab.first_lost_ping()))?;
        Ok(Healed { faults, took })
    }

    fn remove_fault(&mut self, fault: &ActiveFault) -> Result<()> {
        let ActiveFault { fault, node } = fault;
        match fault {
            // A reboot of the node has started the agent meanwhile.
            Fault::KillAgent if self.state.agents.contains_key(node) => Ok(()),
            Fault::KillAgent => self.start_agent(node),
            Fault::ChangeAddress | Fault::LinkDown => self.configure_uplink(node),
            Fault::RemoveNode => self.start_node(node),
            Fault::StopStore => self.start_etcd(),
            Fault::DuplicateRange => self.remove_intruder(&self.pod_cidrs(node)?),
            Fault::ForeignConfig => match fs::remove_file(self.file(node, FOREIGN_CONFLIST)?) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    Err(FileError::at("remove", FOREIGN_CONFLIST)(error).into())
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

    /// The first ping that fails although policies allow it, or the first pod or node that cannot be pinged. Not checked if
    /// the backend has no routes between some nodes.
    fn first_lost_ping(&self) -> Option<String> {
        let unreachable =
            |node: &String| self.agent_status(node).is_some_and(|status| !status.unreachable.is_empty());
        if self.state.spec.backend == "alloc" || self.nodes().iter().any(unreachable) {
            return None;
        }
        match self.ping_all(PING_TIMEOUT) {
            Ok(report) => {
                let lost = report.failures().next().map(|failure| report.sentence(failure));
                lost.or_else(|| report.missing.first().map(ToString::to_string))
            }
            Err(error) => Some(error.to_string()),
        }
    }
}

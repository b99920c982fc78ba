//! Creating a lab: the router and its bridges, the store, the nodes, their agents and their pods.

use std::time::{Duration, Instant};

use podwire_fs::FileError;

use crate::directory::LabDirectory;
use crate::spec::ROUTER;
use crate::state::{Stage, State};
use crate::store::is_installed;
use crate::{agents, Error, Lab, LabSpec, Result, Store};

/// Generous, for a busy machine: agents need about a second.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Lab {
    /// Creates a lab. Calls `report` after each step with its duration. If a step fails, everything is undone.
    ///
    /// Removes the remains of an interrupted creation of the same lab first.
    pub fn up(mut spec: LabSpec, report: &mut dyn FnMut(&str, Duration)) -> Result<Lab> {
        spec.check()?;
        if spec.store == Store::Etcd && !is_installed("etcd") {
            return Err(Error::NoEtcd);
        }
        for (dir, doing) in [
            (&mut spec.policies, "find the policy directory"),
            (&mut spec.services, "find the directory of Services"),
        ] {
            if let Some(dir) = dir {
                // Later commands may run in another directory.
                *dir = dir.canonicalize().map_err(FileError::at(doing, &*dir))?;
            }
        }
        let mut directory = LabDirectory::ensure(&spec.name)?;
        match directory.read()? {
            Some(existing) if existing.stage == Stage::Up => {
                return Err(Error::Exists { name: spec.name, spec: existing.spec.to_string() });
            }
            Some(interrupted) => {
                Lab { directory, state: interrupted }.down()?;
                directory = LabDirectory::ensure(&spec.name)?;
            }
            None => {}
        }
        let mut lab = Lab { directory, state: State::new(spec) };
        match lab.build(report) {
            Ok(()) => Ok(lab),
            Err(error) => match lab.down() {
                Ok(()) => Err(error),
                Err(undo) => Err(Error::Undo { source: Box::new(error), undo: Box::new(undo) }),
            },
        }
    }

    fn build(&mut self, report: &mut dyn FnMut(&str, Duration)) -> Result<()> {
        let mut last = Instant::now();
        let mut done = |what: &str| {
            report(what, last.elapsed());
            last = Instant::now();
        };
        let spec = self.state.spec.clone();
        let nodes: Vec<String> = spec.node_names().collect();
        self.prepare_files()?;
        self.boot(ROUTER)?;
        self.check_backend()?;
        self.create_bridges()?;
        done(&match spec.subnets {
            1 => "router with one subnet".into(),
            many => format!("router with {many} subnets"),
        });
        self.create_store()?;
        done(&format!("store {}", spec.store));
        for node in &nodes {
            self.boot(node)?;
            self.connect(node)?;
        }
        done(&format!("{} nodes connected", nodes.len()));
        for node in &nodes {
            self.start_agent(node)?;
        }
        self.wait_until_none(TIMEOUT, Lab::first_problem)?;
        done(&format!("{} agents ready, backend {}", nodes.len(), spec.backend));
        self.run_pods(&nodes)?;
        if spec.is_calico() {
            // The pods may have needed more blocks. The agents get routes to them a moment later.
            self.wait_for_blocks(TIMEOUT)?;
        }
        let pods = usize::from(spec.pods) * nodes.len() + self.state.pod_nodes.len();
        if pods > 0 {
            let enforced = if spec.policies.is_some() { ", policies enforced" } else { "" };
            let served = if spec.services.is_some() { ", Services served" } else { "" };
            done(&format!("{pods} pods{enforced}{served}"));
        }
        self.state.stage = Stage::Up;
        self.save()
    }

    /// Starts a node that was ended, with its agent and its pods.
    pub(crate) fn start_node(&mut self, node: &str) -> Result<()> {
        self.boot(node)?;
        self.connect(node)?;
        self.refresh_node_list()?;
        self.start_agent(node)?;
        let not_ready = |lab: &Lab| match lab.agent_status(node) {
            Some(status) if agents::is_ready(&status) => None,
            _ => Some(format!("{node}: the agent is not ready: {}", lab.directory.log_tail(node))),
        };
        self.wait_until_none(TIMEOUT, not_ready)?;
        self.run_pods(&[node.into()])
    }
}

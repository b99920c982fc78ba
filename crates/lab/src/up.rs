//! Making a lab: the router and its wires, the store, the nodes, their agents, their pods.

use std::time::{Duration, Instant};

use crate::home::Home;
use crate::plan::ROUTER;
use crate::state::{Stage, State};
use crate::store::is_installed;
use crate::{pods, Error, Lab, Plan, Result, Store};

/// Agents open their roads in a second; on a machine that is busy with other things, later.
const PATIENCE: Duration = Duration::from_secs(60);

impl Lab {
    /// Makes a lab. `tell` hears of each step that is done, and how long it took. If one fails, all is taken back.
    ///
    /// What somebody left who died while making a lab of this name is removed first.
    pub fn up(mut plan: Plan, tell: &mut dyn FnMut(&str, Duration)) -> Result<Lab> {
        plan.check()?;
        if plan.store == Store::Etcd && !is_installed("etcd") {
            return Err(Error::NoEtcd);
        }
        if let Some(folder) = &mut plan.policies {
            // Whoever goes on with the lab may be elsewhere.
            *folder = folder.canonicalize().map_err(Error::file("find the policies' folder", &*folder))?;
        }
        if plan.plugin_dirs.is_empty() {
            plan.plugin_dirs = pods::plugin_dirs();
        }
        let mut home = Home::ensure(&plan.name)?;
        match home.read()? {
            Some(there) if there.stage == Stage::Up => {
                return Err(Error::Exists { name: plan.name, what: there.plan.to_string() });
            }
            Some(half) => {
                Lab { home, state: half }.down()?;
                home = Home::ensure(&plan.name)?;
            }
            None => {}
        }
        let mut lab = Lab { home, state: State::new(plan) };
        match lab.build(tell) {
            Ok(()) => Ok(lab),
            Err(error) => match lab.down() {
                Ok(()) => Err(error),
                Err(undo) => Err(Error::Undo { source: Box::new(error), undo: Box::new(undo) }),
            },
        }
    }

    fn build(&mut self, tell: &mut dyn FnMut(&str, Duration)) -> Result<()> {
        let mut last = Instant::now();
        let mut done = |what: &str| {
            tell(what, last.elapsed());
            last = Instant::now();
        };
        let plan = self.state.plan.clone();
        let nodes: Vec<String> = plan.node_names().collect();
        self.prepare_policies()?;
        self.boot(ROUTER)?;
        self.lay_wires()?;
        done(&match plan.subnets {
            1 => "a router and one wire".into(),
            many => format!("a router and {many} wires"),
        });
        self.open_store()?;
        done(&format!("store {}", plan.store));
        for node in &nodes {
            self.boot(node)?;
            self.plug_in(node)?;
        }
        done(&format!("{} nodes on their wires", nodes.len()));
        for node in &nodes {
            self.start_agent(node)?;
        }
        self.wait_until_none(PATIENCE, Lab::flaw)?;
        done(&format!("{} agents know each other, backend {}", nodes.len(), plan.backend));
        self.run_pods(&nodes)?;
        if plan.is_routed() {
            // Pods may have needed more blocks, to which there are roads a moment later.
            self.wait_for_blocks(PATIENCE)?;
        }
        let pods = usize::from(plan.pods) * nodes.len() + self.state.settled.len();
        if pods > 0 {
            done(&format!("{pods} pods{}", if plan.policies.is_some() { ", policies enforced" } else { "" }));
        }
        self.state.stage = Stage::Up;
        self.save()
    }

    /// Starts a node that was ended: it comes up as a machine does, with its agent and its pods.
    pub(crate) fn bring_back(&mut self, node: &str) -> Result<()> {
        self.boot(node)?;
        self.plug_in(node)?;
        self.refresh_list()?;
        self.start_agent(node)?;
        let is_ready = |lab: &Lab| match lab.word(node) {
            Some(word) if word.phase == "ready" => None,
            _ => Some(format!("{node}: its agent is not ready: {}", lab.home.last_words(node))),
        };
        self.wait_until_none(PATIENCE, is_ready)?;
        self.run_pods(&[node.into()])
    }
}

//! What the thread does: it holds all that is known, and makes the kernel do what follows from it.

use std::collections::BTreeSet;
use std::io::Read;
use std::os::fd::AsFd;
use std::sync::mpsc::{Sender, TryRecvError};
use std::sync::PoisonError;
use std::time::{Duration, Instant, SystemTime};

use crate::dataplane::{Change, Dataplane, Nftables, Port, Premises};
use ipnet::IpNet;
use podwire_agent_ipc::policy::{Interface, Response};
use podwire_netlink::{nft, sys, Socket};
use podwire_policy::{Compiler, Program, Warning};
use tracing::{debug, error, info, warn};

use crate::agent::{Desk, Order, PolicyStatus};
use crate::cluster_state::{ClusterState, Home};
use crate::connection_cleanup::ConnectionCleanup;
use crate::drop_log::DropLog;
use crate::{recorded, Error, Result};

/// How often all is compared when nothing was heard.
const RESYNC: Duration = Duration::from_secs(30);
/// After a failure all is tried again after this.
const AGAIN: Duration = Duration::from_secs(1);

/// All that the thread has.
pub(crate) struct PolicyReconciler {
    desk: Desk,
    /// Hears what anybody does to rules.
    rules: Socket,
    kernel: Nftables,
    world: ClusterState,
    /// The program, and what it was made from; none if all must be compiled anew.
    compiler: Option<Compiler>,
    home: Home,
    lists_pods: bool,
    guarded: Vec<IpNet>,
    /// Plugins that wait for an answer.
    waiting: Vec<(Interface, Sender<Response>)>,
    /// Since when something is known that is not in the kernel.
    news: Option<Instant>,
    /// Until when all changes of the source are known.
    as_of: Option<SystemTime>,
    /// What users were told already.
    warned: BTreeSet<Warning>,
    /// Tells of dropped packets, where the kernel can show them.
    witness: Option<DropLog>,
    /// Ends connections, if that is wished.
    cutter: Option<ConnectionCleanup>,
}

fn not_told(why: &impl std::fmt::Display) {
    warn!("dropped packets are counted, but none is told of: {why}");
}

impl PolicyReconciler {
    /// For the namespace of the calling thread. `lists_pods`, `cuts`: as [`PolicyAgent::start`](crate::PolicyAgent::start) says.
    pub fn new(desk: Desk, home: Home, lists_pods: bool, cuts: bool) -> Result<PolicyReconciler> {
        let mut rules = Socket::netfilter()?;
        rules.subscribe(nft::GROUP)?;
        let mut world = ClusterState::default();
        recorded::recorded().into_iter().for_each(|interface| world.attach(interface));
        Ok(PolicyReconciler {
            desk,
            rules,
            kernel: Nftables::open()?,
            world,
            compiler: None,
            home,
            lists_pods,
            guarded: Vec::new(),
            waiting: Vec::new(),
            news: Some(Instant::now()),
            as_of: None,
            warned: BTreeSet::new(),
            witness: DropLog::open().inspect_err(not_told).ok(),
            cutter: cuts.then(ConnectionCleanup::open).transpose()?,
        })
    }

    /// Until nobody can order anything any more.
    pub fn run(&mut self) {
        loop {
            if self.hear().is_err() {
                return;
            }
            let rest = match self.enforce() {
                Ok(()) => RESYNC,
                Err(error) => {
                    self.problem(&error.to_string());
                    AGAIN
                }
            };
            if let Err(error) = self.wait(rest) {
                self.problem(&error.to_string());
            }
        }
    }

    /// All that was ordered until now.
    fn hear(&mut self) -> Result<(), ()> {
        loop {
            let order = match self.desk.inbox.try_recv() {
                Ok(order) => order,
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(()),
            };
            match order {
                Order::Update(told) => self.world.learn(told),
                Order::AsOf(time) => self.as_of = Some(time),
                Order::Guard(networks, own) => {
                    if self.home.addresses != own {
                        self.compiler = None;
                    }
                    (self.guarded, self.home.addresses) = (networks, own);
                }
                Order::Attach(interface, reply) => {
                    self.world.attach(interface.clone());
                    self.waiting.push((interface, reply));
                }
                Order::Detach(owner) => self.world.detach(&owner),
            }
            self.news.get_or_insert_with(Instant::now);
        }
    }

    /// Until there are orders, somebody touched our rules, or the time is over. Meanwhile dropped packets are told of.
    fn wait(&mut self, rest: Duration) -> Result<()> {
        let end = Instant::now() + rest;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let mut ears = vec![self.desk.bell.as_fd(), self.rules.as_fd()];
            ears.extend(self.witness.as_ref().map(AsFd::as_fd));
            let ready = sys::readable(&ears, left).map_err(Error::file("wait for", "orders"))?;
            if let (Some(true), Some(witness)) = (ready.get(2), &mut self.witness) {
                // Who cannot tell any more keeps nobody from enforcing.
                if let Err(error) = witness.tell(&self.world, &self.kernel) {
                    not_told(&error);
                    self.witness = None;
                }
            }
            if ready[0] {
                // Whoever rang has given an order before. 0 bytes: the others are gone, which the inbox tells too.
                let _ = self.desk.bell.read(&mut [0; 256]);
                return Ok(());
            }
            if !ready.contains(&true) {
                return Ok(());
            }
            let mut touched = false;
            let whole = self.rules.drain(|frame| {
                touched |=
                    nft::subject(frame).is_some_and(|(table, _)| table.name == crate::dataplane::TABLE.name)
            })?;
            if touched || !whole {
                return Ok(());
            }
        }
    }

    fn enforce(&mut self) -> Result<()> {
        if !self.world.is_complete() {
            return Ok(());
        }
        let mut compiler = self.world.compiler(self.compiler.take(), &self.home, !self.lists_pods);
        let (ports, claims) = self.world.ports();
        let warnings = compiler.warnings().cloned().chain(claims).collect();
        let change = self.apply(compiler.program(), ports);
        self.compiler = Some(compiler);
        let change = change?;
        let took = self.news.take().map(|since| since.elapsed());
        // Nothing new was known: the kernel was not as it had been left.
        let mended = took.is_none() && !change.is_empty();
        let cut = self.cut(mended);
        self.answer();
        self.warn(warnings);
        self.report(&change, took, mended, cut?);
        Ok(())
    }

    /// Ends what the program no longer allows, if that is wished; says how many connections.
    fn cut(&mut self, mended: bool) -> Result<usize> {
        let (Some(cutter), Some(compiler)) = (&mut self.cutter, &mut self.compiler) else { return Ok(0) };
        if mended {
            cutter.doubt();
        }
        cutter.cut(compiler.program(), &mut self.kernel)
    }

    fn report(&mut self, change: &Change, took: Option<Duration>, mended: bool, cut: usize) {
        if !change.is_empty() {
            let Change { chains, sets, elements } = change;
            debug!(chains, sets, elements, ?took, "rules changed");
        }
        if cut > 0 {
            info!(connections = cut, "connections were cut that policies no longer allow");
        }
        let (policies, interfaces) = self.world.sizes();
        let unmatched = self.compiler.iter_mut().flat_map(|compiler| compiler.unmatched());
        let unmatched = unmatched.map(|warning| warning.to_string()).collect();
        let mut state = self.desk.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.problem.take().is_some() || !state.enforced {
            info!(policies, interfaces, "policies are enforced");
        }
        *state = PolicyStatus {
            enforced: true,
            policies,
            interfaces,
            size: self.kernel.size(),
            changes: state.changes + u64::from(!change.is_empty()),
            repairs: state.repairs + u64::from(mended),
            failures: state.failures,
            closed_connections: state.closed_connections + cut as u64,
            last_change: took.unwrap_or(state.last_change),
            unmatched_selectors: unmatched,
            as_of: self.as_of,
            problem: None,
        };
    }

    /// Into the kernel; without a way to show dropped packets if it has none.
    fn apply(&mut self, program: &Program, ports: Vec<Port>) -> Result<Change> {
        let guarded = self.guarded.clone();
        let (samples, ends) = (self.witness.is_some(), self.cutter.is_some());
        let premises = Premises { guarded, ports, samples, ends };
        match self.kernel.apply(program, &premises) {
            Err(error) if premises.samples && error.is_unsupported() => {
                let change = self.kernel.apply(program, &Premises { samples: false, ..premises })?;
                not_told(&error);
                self.witness = None;
                Ok(change)
            }
            other => Ok(other?),
        }
    }

    /// Whoever waits for a pod that is enforced now. A pod that the source should know, and does not yet, is waited for.
    fn answer(&mut self) {
        let (world, must_be_known) = (&self.world, self.lists_pods);
        self.waiting.retain(|(interface, reply)| {
            if must_be_known && !world.knows(&interface.pod_name()) {
                return true;
            }
            // One that was tired of waiting does not hear it.
            let _ = reply.send(Response { enforced: true, reason: String::new() });
            false
        });
    }

    /// Each once, for as long as it is so.
    fn warn(&mut self, now: BTreeSet<Warning>) {
        for warning in now.difference(&self.warned) {
            warn!("{warning}");
        }
        self.warned = now;
    }

    fn problem(&mut self, what: &str) {
        let mut state = self.desk.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.problem.as_deref() != Some(what) {
            error!("policies are not enforced as they should be: {what}");
        }
        state.problem = Some(what.into());
        state.failures += 1;
    }
}

//! Repair: restores what CHECK finds changed, as far as that is possible without a new ADD.

use std::collections::HashMap;

use podwire_cni_plugin::{dispatch, Command, Finding};
use podwire_cni_spec::NetworkList;
use serde_json::Value;

use crate::check::require_check;
use crate::invoke::{failed, guarded, own_namespace_allowed, Call, Location, Step};
use crate::{Identity, Record, Result, Runtime};

/// The largest number of passes over the chain. Some differences can be found or repaired only after others: a route needs a link
/// that is up, a port's VLANs need the bridge.
const ROUNDS: usize = 4;

/// The outcome of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// The differences that were repaired, in order.
    pub repaired: Vec<Difference>,
    /// The differences that remain; empty if CHECK would succeed.
    pub remaining: Vec<Remaining>,
}

impl RepairReport {
    /// Whether the attachment is as ADD left it.
    pub fn is_complete(&self) -> bool {
        self.remaining.is_empty()
    }
}

/// A difference that was repaired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The plugin that found it.
    pub plugin: String,
    /// Its description.
    pub what: String,
}

/// A difference that was not repaired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// The plugin that found it.
    pub plugin: String,
    /// Its description.
    pub what: String,
    /// Why the repair failed; `None` if there is no repair, as for plugins of other programs.
    pub reason: Option<String>,
}

/// One pass over the chain.
#[derive(Default)]
struct Round {
    /// The differences and their outcomes.
    found: Vec<(Difference, Outcome)>,
}

enum Outcome {
    Repaired,
    Failed(String),
    NotRepairable,
}

impl<'p> Runtime<'p> {
    /// Compares the attachment with the result of ADD, as [`check`](Self::check) does, and repairs the differences.
    ///
    /// In-process plugins ([`registry`](Self::registry)) have repairs; of other plugins CHECK runs, and its errors remain. A
    /// network with `disableCheck` is not repaired.
    pub fn repair(&self, list: &NetworkList, identity: &Identity) -> Result<RepairReport> {
        require_check(list)?;
        let mut repaired = RepairReport::default();
        if list.disable_check {
            return Ok(repaired);
        }
        let record = self.cache.find(&list.name, identity)?;
        let identity = Record::complete(record.as_ref(), identity);
        let result = record.map(|record| record.result_in(list.version)).transpose()?.flatten();
        let chain = self.chain(list, Command::Check)?;
        let mut reasons: HashMap<String, String> = HashMap::new();
        for round in 0..=ROUNDS {
            let mut now = Round::default();
            for step in &chain {
                let config = step.config.request(list, result.as_ref(), &identity.capabilities);
                // The last pass only checks: what it finds was not repaired.
                let target = Target { list, step, identity: &identity };
                now.run_plugin(self, &target, config, round < ROUNDS);
            }
            if now.conclude(&mut repaired, &mut reasons) {
                break;
            }
        }
        Ok(repaired)
    }

    /// The differences that an in-process plugin finds.
    fn inspect(
        &self,
        step: &Step<'_, 'p>,
        identity: &Identity,
        config: Value,
    ) -> podwire_cni_plugin::Result<Option<Vec<Finding<'p>>>> {
        let Location::InProcess(plugin) = step.location else { return Ok(None) };
        let call =
            Call { command: Command::Check, identity: Some(identity), config, deadline: self.deadline() };
        let request = self.request(call)?;
        guarded(|| dispatch::inspect(plugin, &request, own_namespace_allowed())).map(Some)
    }
}

/// The plugin and the attachment of a pass.
struct Target<'t, 'p> {
    list: &'t NetworkList,
    step: &'t Step<'t, 'p>,
    identity: &'t Identity,
}

impl Round {
    /// Inspects one plugin's part, and repairs it with `repair`.
    fn run_plugin<'p>(
        &mut self,
        runtime: &Runtime<'p>,
        target: &Target<'_, 'p>,
        config: Value,
        repair: bool,
    ) {
        let Target { list, step, identity } = *target;
        let kind = &step.config.kind;
        let mut note = |what: String, outcome: Outcome| {
            self.found.push((Difference { plugin: kind.clone(), what }, outcome));
        };
        match runtime.inspect(step, identity, config.clone()) {
            Ok(Some(findings)) => {
                for finding in findings {
                    let what = finding.to_string();
                    let outcome = if !finding.is_repairable() || !repair {
                        Outcome::NotRepairable
                    } else if let Err(error) = guarded(|| finding.repair()) {
                        Outcome::Failed(error.to_string())
                    } else {
                        Outcome::Repaired
                    };
                    note(what, outcome);
                }
            }
            Ok(None) => {
                let deadline = runtime.deadline();
                let call = Call { command: Command::Check, identity: Some(identity), config, deadline };
                if let Err(error) = runtime.call(list, step, call) {
                    note(error.to_cni().msg, Outcome::NotRepairable);
                }
            }
            Err(error) => {
                note(failed(list, kind, Command::Check)(error).to_cni().msg, Outcome::NotRepairable)
            }
        }
    }

    /// Adds the outcomes of this pass to the report; returns true if another pass is useless.
    fn conclude(self, repaired: &mut RepairReport, reasons: &mut HashMap<String, String>) -> bool {
        let has_repaired = self.found.iter().any(|(_, outcome)| matches!(outcome, Outcome::Repaired));
        // A difference that is found again was not repaired.
        repaired.repaired.retain(|before| !self.found.iter().any(|(now, _)| now == before));
        repaired.remaining.clear();
        for (found, outcome) in self.found {
            match outcome {
                Outcome::Repaired => {
                    repaired.repaired.push(found);
                    continue;
                }
                Outcome::Failed(reason) => drop(reasons.insert(found.what.clone(), reason)),
                Outcome::NotRepairable => {}
            }
            let reason = reasons.get(&found.what).cloned();
            repaired.remaining.push(Remaining { plugin: found.plugin, what: found.what, reason });
        }
        !has_repaired
    }
}

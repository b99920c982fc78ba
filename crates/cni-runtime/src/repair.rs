//! Repair: restores what CHECK finds changed, as far as that is possible without a new ADD.

use std::collections::HashMap;

use podwire_cni_plugin::repair::{Mode, Outcome, Reported};
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

impl<'p> Runtime<'p> {
    /// Compares the attachment with the result of ADD, as [`check`](Self::check) does, and repairs the differences.
    ///
    /// In-process plugins ([`registry`](Self::registry)) and executed plugins of the SDK have repairs; of other plugins
    /// CHECK runs, and its errors remain. A network with `disableCheck` is not repaired.
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
                now.run_plugin(
                    self,
                    &target,
                    config,
                    if round < ROUNDS { Mode::Repair } else { Mode::Inspect },
                );
            }
            if now.conclude(&mut repaired, &mut reasons) {
                break;
            }
        }
        Ok(repaired)
    }

    /// Runs CHECK of a plugin and repairs the differences if `mode` asks for it. The error of an executed plugin that is
    /// not of the SDK is its only difference.
    fn settle(
        &self,
        step: &Step<'_, 'p>,
        identity: &Identity,
        config: Value,
        mode: Mode,
    ) -> podwire_cni_plugin::Result<Vec<Reported>> {
        let call =
            Call { command: Command::Check, identity: Some(identity), config, deadline: self.deadline() };
        let plugin = match &step.location {
            Location::InProcess(plugin) => *plugin,
            Location::File(file) => {
                let report = self.check_file(file, &call, mode)?;
                return Ok(report.map(|report| report.differences).unwrap_or_default());
            }
        };
        let request = self.request(call)?;
        let found = guarded(|| dispatch::inspect(plugin, &request, own_namespace_allowed()))?;
        let settle = |finding: Finding<'p>| {
            let what = finding.to_string();
            guarded(|| Ok(finding.settle(mode))).unwrap_or_else(|panicked| Reported {
                what,
                outcome: Outcome::Failed { reason: panicked.to_string() },
            })
        };
        Ok(found.into_iter().map(settle).collect())
    }
}

/// The plugin and the attachment of a pass.
struct Target<'t, 'p> {
    list: &'t NetworkList,
    step: &'t Step<'t, 'p>,
    identity: &'t Identity,
}

impl Round {
    /// Inspects one plugin's part, and repairs it if `mode` asks for it.
    fn run_plugin<'p>(&mut self, runtime: &Runtime<'p>, target: &Target<'_, 'p>, config: Value, mode: Mode) {
        let Target { list, step, identity } = *target;
        let kind = &step.config.kind;
        let mut note = |what: String, outcome: Outcome| {
            self.found.push((Difference { plugin: kind.clone(), what }, outcome));
        };
        match runtime.settle(step, identity, config, mode) {
            Ok(differences) => differences.into_iter().for_each(|one| note(one.what, one.outcome)),
            Err(error) => note(failed(list, kind, Command::Check)(error).to_cni().msg, Outcome::NotRepaired),
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
                Outcome::Failed { reason } => drop(reasons.insert(found.what.clone(), reason)),
                Outcome::Repairable | Outcome::NotRepaired => {}
            }
            let reason = reasons.get(&found.what).cloned();
            repaired.remaining.push(Remaining { plugin: found.plugin, what: found.what, reason });
        }
        !has_repaired
    }
}

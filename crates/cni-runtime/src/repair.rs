//! Repair: what CHECK finds changed is put back, as far as it can be without a new attachment.

use std::collections::HashMap;

use podwire_cni_plugin::{dispatch, Command, Finding};
use podwire_cni_spec::NetworkList;
use serde_json::Value;

use crate::check::require_check;
use crate::invoke::{failed, guarded, own_namespace_allowed, Call, Place, Step};
use crate::{Identity, Result, Runtime};

/// How often the chain is gone through. Some things can be seen, or put back, only when others are: a route when
/// its link is up, a port's VLANs when it is on its bridge.
const ROUNDS: usize = 4;

/// What a repair did, and what it could not do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// What was not as it should be and is now, in the order in which it was put back.
    pub put_back: Vec<PutBack>,
    /// What is still not as it should be: empty if a CHECK would pass.
    pub left: Vec<Left>,
}

impl Repaired {
    /// Whether the attachment is as ADD left it.
    pub fn is_whole(&self) -> bool {
        self.left.is_empty()
    }
}

/// A difference that was mended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutBack {
    /// The plugin that found it.
    pub plugin: String,
    /// What it was.
    pub what: String,
}

/// A difference that was not mended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The plugin that found it.
    pub plugin: String,
    /// What it is.
    pub what: String,
    /// Why it could not be put back; `None` if only a new attachment can, or if the plugin is not one of ours and
    /// nobody knows how.
    pub why: Option<String>,
}

/// One time through the chain.
#[derive(Default)]
struct Round {
    /// Everything that was found, and whether it was mended.
    found: Vec<(PutBack, Outcome)>,
}

enum Outcome {
    Mended,
    Failed(String),
    CannotBe,
}

impl<'p> Runtime<'p> {
    /// Compares the attachment with what ADD left, as [`check`](Self::check) does, and puts back what differs.
    ///
    /// Plugins of this program ([`registry`](Self::registry)) say how; any other is asked for its CHECK, and what
    /// it complains of is left. Nothing is put back in a network that switches checks off.
    pub fn repair(&self, list: &NetworkList, identity: &Identity) -> Result<Repaired> {
        require_check(list)?;
        let mut repaired = Repaired::default();
        if list.disable_check {
            return Ok(repaired);
        }
        let record = self.cache.find(&list.name, identity)?;
        let identity = identity.clone().completed(record.as_ref());
        let result = record.map(|record| record.result_in(list.version)).transpose()?.flatten();
        let chain = self.chain(list, Command::Check)?;
        let mut reasons: HashMap<String, String> = HashMap::new();
        for round in 0..=ROUNDS {
            let mut now = Round::default();
            for step in &chain {
                let config = step.config.request(list, result.as_ref(), &identity.capabilities);
                // The last time is a CHECK: whatever is found then was not put back.
                now.go_through(self, (list, step, &identity), config, round < ROUNDS);
            }
            if now.conclude(&mut repaired, &mut reasons) {
                break;
            }
        }
        Ok(repaired)
    }

    /// What a plugin of this program finds.
    fn inspect(
        &self,
        step: &Step<'_, 'p>,
        identity: &Identity,
        config: Value,
    ) -> podwire_cni_plugin::Result<Option<Vec<Finding<'p>>>> {
        let Place::Here(plugin) = step.place else { return Ok(None) };
        let call =
            Call { command: Command::Check, identity: Some(identity), config, deadline: self.deadline() };
        let request = self.request(call)?;
        guarded(|| dispatch::inspect(plugin, &request, own_namespace_allowed())).map(Some)
    }
}

impl Round {
    /// Asks one plugin, and mends what it finds if that is wanted.
    fn go_through<'p>(
        &mut self,
        runtime: &Runtime<'p>,
        (list, step, identity): (&NetworkList, &Step<'_, 'p>, &Identity),
        config: Value,
        mend: bool,
    ) {
        let kind = &step.config.kind;
        let mut note = |what: String, outcome: Outcome| {
            self.found.push((PutBack { plugin: kind.clone(), what }, outcome));
        };
        match runtime.inspect(step, identity, config.clone()) {
            Ok(Some(findings)) => {
                for finding in findings {
                    let what = finding.to_string();
                    let outcome = match finding.is_repairable() && mend {
                        false => Outcome::CannotBe,
                        true => match guarded(|| finding.repair()) {
                            Ok(()) => Outcome::Mended,
                            Err(error) => Outcome::Failed(error.to_string()),
                        },
                    };
                    note(what, outcome);
                }
            }
            Ok(None) => {
                let deadline = runtime.deadline();
                let call = Call { command: Command::Check, identity: Some(identity), config, deadline };
                if let Err(error) = runtime.call(list, step, call) {
                    note(error.to_cni().msg, Outcome::CannotBe);
                }
            }
            Err(error) => note(failed(list, kind, Command::Check)(error).to_cni().msg, Outcome::CannotBe),
        }
    }

    /// Adds what came of this round to the whole; says whether another one is of no use.
    fn conclude(self, repaired: &mut Repaired, reasons: &mut HashMap<String, String>) -> bool {
        let mended = self.found.iter().any(|(_, outcome)| matches!(outcome, Outcome::Mended));
        // What is found again did not stay where it was put.
        repaired.put_back.retain(|before| !self.found.iter().any(|(now, _)| now == before));
        repaired.left.clear();
        for (found, outcome) in self.found {
            match outcome {
                Outcome::Mended => {
                    repaired.put_back.push(found);
                    continue;
                }
                Outcome::Failed(why) => drop(reasons.insert(found.what.clone(), why)),
                Outcome::CannotBe => {}
            }
            let why = reasons.get(&found.what).cloned();
            repaired.left.push(Left { plugin: found.plugin, what: found.what, why });
        }
        !mended
    }
}

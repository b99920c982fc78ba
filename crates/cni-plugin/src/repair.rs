//! Repair by an executed plugin. The spec has no verb for it, so it is a CHECK with the variable [`VARIABLE`].
//!
//! A plugin of this SDK then answers with a [`Report`]: every difference, and what became of it. Other plugins ignore the
//! variable and answer CHECK as usual.

use podwire_cni_spec::json;
use serde::{Deserialize, Serialize};

use crate::{Finding, Plugin, Request, Result};

/// Set on a CHECK that asks for a [`Report`]; the value is a [`Mode`].
pub const VARIABLE: &str = "PODWIRE_REPAIR";

/// What a plugin does with the differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It lists them.
    Inspect,
    /// It repairs those that have a repair.
    Repair,
}

impl Mode {
    /// The value of the variable.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Inspect => "inspect",
            Mode::Repair => "repair",
        }
    }

    /// Reads the variable; any other value is an ordinary CHECK.
    pub fn parse(text: &str) -> Option<Mode> {
        [Mode::Inspect, Mode::Repair].into_iter().find(|mode| mode.as_str() == text)
    }
}

/// The answer of a plugin: an object with one key, by which it is recognized.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Report {
    /// The differences, in the order in which the plugin found them.
    #[serde(rename = "podwireRepair")]
    pub differences: Vec<Reported>,
}

/// A difference, and what became of it.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Reported {
    /// Its description.
    pub what: String,
    /// What became of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What became of a difference.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "outcome", rename_all = "camelCase")]
pub enum Outcome {
    /// It was repaired.
    Repaired,
    /// Its repair failed.
    Failed {
        /// Why.
        reason: String,
    },
    /// It has a repair, and none was asked for.
    Repairable,
    /// It has no repair.
    NotRepaired,
}

impl Report {
    /// Reads the output of a CHECK; `None` if it is not a report.
    pub fn parse(output: &[u8]) -> Option<Report> {
        serde_json::from_value(json::parse(output).ok()?).ok()
    }

    /// The answer of `plugin`.
    pub(crate) fn of(plugin: &dyn Plugin, req: &Request<'_>, mode: Mode) -> Result<Report> {
        let found = plugin.inspect(req)?;
        Ok(Report { differences: found.into_iter().map(|finding| finding.settle(mode)).collect() })
    }
}

impl Finding<'_> {
    /// Repairs the difference if `mode` asks for it and it has a repair.
    pub fn settle(self, mode: Mode) -> Reported {
        let what = self.to_string();
        let outcome = match (self.is_repairable(), mode) {
            (false, _) => Outcome::NotRepaired,
            (true, Mode::Inspect) => Outcome::Repairable,
            (true, Mode::Repair) => match self.repair() {
                Ok(()) => Outcome::Repaired,
                Err(error) => Outcome::Failed { reason: error.to_string() },
            },
        };
        Reported { what, outcome }
    }
}

#[cfg(test)]
mod tests {
    use podwire_cni_spec::Attachment;
    use serde_json::{json, Value};

    use super::*;
    use crate::dispatch::{dispatch, Process};
    use crate::Registry;

    /// Finds three differences.
    struct Damaged;

    impl Plugin for Damaged {
        fn name(&self) -> &'static str {
            "damaged"
        }
        fn about(&self) -> &'static str {
            "damaged: always has differences"
        }
        fn add(&self, _: &Request<'_>) -> Result<Attachment> {
            Ok(Attachment::default())
        }
        fn del(&self, _: &Request<'_>) -> Result<()> {
            Ok(())
        }
        fn inspect<'p>(&self, _: &Request<'p>) -> Result<Vec<Finding<'p>>> {
            let busy = || Err(podwire_cni_spec::Error::internal("it is busy").into());
            Ok(vec![
                Finding::new("eth0 is down").repaired_by(|| Ok(())),
                Finding::new("the alias is gone").repaired_by(busy),
                Finding::new("eth0 is another"),
            ])
        }
        fn gc(&self, _: &Request<'_>) -> Result<()> {
            Ok(())
        }
        fn status(&self, _: &Request<'_>) -> Result<()> {
            Ok(())
        }
    }

    /// CHECK as a runtime executes it, with a value of the variable.
    fn check(value: &str) -> (u8, Value) {
        let env = |name: &str| {
            let value = match name {
                "CNI_COMMAND" => "CHECK",
                "CNI_CONTAINERID" => "c1",
                "CNI_NETNS" => "/nowhere",
                "CNI_IFNAME" => "eth0",
                "CNI_PATH" => "/bin",
                VARIABLE => value,
                _ => return None,
            };
            Some(value.to_owned())
        };
        let config = json!({"cniVersion": "1.0.0", "name": "n", "type": "damaged", "prevResult": {"cniVersion": "1.0.0"}});
        let (stdin, mut stdout) = (config.to_string(), Vec::new());
        let mut process = Process {
            env: &env,
            stdin: &mut stdin.as_bytes(),
            stdout: &mut stdout,
            stderr: &mut std::io::sink(),
        };
        let status = dispatch(&Damaged, &Registry::none(), &mut process);
        (status, serde_json::from_slice(&stdout).unwrap())
    }

    #[test]
    fn a_check_with_the_variable_repairs_and_reports() {
        let report = json!({"podwireRepair": [
            {"what": "eth0 is down", "outcome": "repaired"},
            {"what": "the alias is gone", "outcome": "failed", "reason": "it is busy"},
            {"what": "eth0 is another", "outcome": "notRepaired"},
        ]});
        assert_eq!(check("repair"), (0, report.clone()));
        let (status, listed) = check("inspect");
        let outcomes =
            listed["podwireRepair"].as_array().unwrap().iter().map(|one| one["outcome"].as_str().unwrap());
        assert_eq!(
            (status, outcomes.collect::<Vec<_>>()),
            (0, vec!["repairable", "repairable", "notRepaired"])
        );
        let report = Report::parse(report.to_string().as_bytes()).unwrap();
        assert_eq!(report.differences[1].outcome, Outcome::Failed { reason: "it is busy".into() });
        for other in ["", "{}", r#"{"cniVersion": "1.0.0"}"#, "text"] {
            assert_eq!(Report::parse(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_check_without_it_fails_with_the_differences() {
        for value in ["", "yes"] {
            let (status, error) = check(value);
            assert_eq!(
                (status, &error["msg"]),
                (1, &json!("eth0 is down; the alias is gone; eth0 is another"))
            );
        }
    }
}

//! `podwire lab break` and `podwire lab heal`.

use clap::Args;
use podwire_lab::{Broken, Fault, Lab};
use serde_json::{json, Value};

use crate::paint::Paint;
use crate::table::table;
use crate::{Answer, Failure};

pub(super) const EXAMPLES: &str = "Examples:
  podwire lab break                        what can be broken
  podwire lab break delete-device n2
  podwire lab break stop-store             etcd, in a lab with --store etcd
  podwire lab heal

Each fault is the real thing, done inside of the lab. `podwire lab heal` takes away what does not heal by itself, waits until
every agent is content and all pods reach each other, and tells how long that took.";

#[derive(Debug, Args)]
pub(crate) struct Break {
    #[command(flatten)]
    lab: super::Named,
    /// What to break.
    #[arg(value_name = "FAULT")]
    fault: Option<Fault>,
    /// On which node.
    #[arg(value_name = "NODE", default_value = "n1")]
    node: String,
}

impl Break {
    pub(super) fn run(&self) -> Result<Answer, Failure> {
        let Some(fault) = self.fault else { return Ok(list()) };
        let (name, node) = (&self.lab.name, &self.node);
        let failed = || format!("cannot do {fault} to {node} of lab {name}");
        let mut lab = Lab::hold(name).map_err(Failure::to(failed()))?;
        lab.harm(fault, node).map_err(Failure::to(failed()))?;
        let next = match fault.remedy() {
            None => "it heals by itself",
            Some(_) => "podwire lab heal takes it back",
        };
        let text = format!("{node}: {}\n{next}\n", fault.what());
        Ok(Answer::new(
            text,
            json!({ "fault": fault, "node": node, "healsItself": fault.remedy().is_none() }),
        ))
    }
}

fn list() -> Answer {
    let row = |fault: &Fault| {
        let then = fault.remedy().map_or("by itself".into(), |remedy| format!("heal: {remedy}"));
        vec![fault.name().to_owned(), fault.what().to_owned(), then]
    };
    let rows: Vec<Vec<String>> = Fault::ALL.iter().map(row).collect();
    let one = |fault: &Fault| json!({ "fault": fault, "what": fault.what(), "remedy": fault.remedy() });
    let json: Vec<Value> = Fault::ALL.iter().map(one).collect();
    Answer::new(table(&["FAULT", "WHAT IS DONE", "WHAT HEALS IT"], &rows, Paint::stdout()), json.into())
}

pub(super) fn heal(name: &str) -> Result<Answer, Failure> {
    let failed = || format!("cannot heal lab {name}");
    let mut lab = Lab::hold(name).map_err(Failure::to(failed()))?;
    let healed = lab.heal().map_err(Failure::to(failed()))?;
    let line = |one: &Broken| {
        let done = one.fault.remedy().unwrap_or_default();
        format!("{} on {}: {done}\n", one.fault, one.node)
    };
    let causes: String = healed.causes.iter().map(line).collect();
    let text = format!("{causes}the lab is whole after {:.2} s\n", healed.took.as_secs_f64());
    Ok(Answer::new(text, json!({ "causes": healed.causes, "seconds": healed.took.as_secs_f64() })))
}

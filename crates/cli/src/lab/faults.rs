//! `podwire lab break` and `podwire lab heal`.

use clap::Args;
use podwire_lab::{ActiveFault, Fault, Lab};
use serde_json::{json, Value};

use super::name_flag::NameFlag;
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;
use crate::table::table;

pub(super) const EXAMPLES: &str = "Examples:
  podwire lab break                        list the faults
  podwire lab break delete-device n2
  podwire lab break stop-store             kill etcd, in a lab with --store etcd
  podwire lab heal

Each fault is a real change inside the lab. `podwire lab heal` removes the faults that the agents
cannot repair, waits until every agent is healthy and all pods reach each other, and prints the
time.";

#[derive(Debug, Args)]
pub(crate) struct Break {
    #[command(flatten)]
    lab: NameFlag,
    /// Fault to inject.
    #[arg(value_name = "FAULT")]
    fault: Option<Fault>,
    /// Node to inject it on.
    #[arg(value_name = "NODE", default_value = "n1")]
    node: String,
}

impl Break {
    /// Whether it lists the faults.
    pub(super) fn is_list(&self) -> bool {
        self.fault.is_none()
    }

    pub(super) fn run(&self) -> Result<Output, Failure> {
        let Some(fault) = self.fault else { return Ok(list()) };
        let (name, node) = (&self.lab.name, &self.node);
        let failed = || format!("cannot inject {fault} on {node} of lab {name}");
        let mut lab = Lab::lock(name).map_err(Failure::context(failed()))?;
        lab.inject(fault, node).map_err(Failure::context(failed()))?;
        let next = match fault.remedy() {
            None => "the agent repairs it",
            Some(_) => "`podwire lab heal` removes it",
        };
        let text = format!("{node}: {}\n{next}\n", fault.description());
        Ok(Output::new(
            text,
            json!({ "fault": fault, "node": node, "selfHealing": fault.remedy().is_none() }),
        ))
    }
}

fn list() -> Output {
    let row = |fault: &Fault| {
        let then = fault.remedy().map_or("the agent".into(), |remedy| format!("podwire lab heal: {remedy}"));
        vec![fault.name().to_owned(), fault.description().to_owned(), then]
    };
    let rows: Vec<Vec<String>> = Fault::ALL.iter().map(row).collect();
    let one = |fault: &Fault| json!({ "fault": fault, "description": fault.description(), "remedy": fault.remedy() });
    let json = json!({ "faults": Fault::ALL.iter().map(one).collect::<Vec<Value>>() });
    Output::new(table(&["FAULT", "DESCRIPTION", "REPAIRED BY"], &rows, Paint::stdout()), json)
}

pub(super) fn heal(name: &str) -> Result<Output, Failure> {
    let failed = || format!("cannot heal lab {name}");
    let mut lab = Lab::lock(name).map_err(Failure::context(failed()))?;
    let healed = lab.heal().map_err(Failure::context(failed()))?;
    let line = |one: &ActiveFault| {
        let remedy = one.fault.remedy().unwrap_or_default();
        format!("{} on {}: {remedy}\n", one.fault, one.node)
    };
    let removed: String = healed.faults.iter().map(line).collect();
    let text = format!("{removed}the lab is healthy after {:.2} s\n", healed.took.as_secs_f64());
    Ok(Output::new(text, json!({ "faults": healed.faults, "seconds": healed.took.as_secs_f64() })))
}

//! `podwire ipam check`: compares blocks, handles and affinities with each other.

use clap::Args;
use podwire_block_ipam::Problem;
use serde_json::json;

use super::store_flags::{allocator, rules, StoreFlags};
use crate::failure::Failure;
use crate::output::Output;

pub(super) const EXAMPLES: &str = "Examples:
  podwire ipam check
  podwire ipam check --repair

The check takes no lock. An operation in progress can look like a problem, so the check reads twice
and reports what both reads show. The exit status is 1 if a problem is left.";

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Repair wrong handle counts, affinities for blocks of other nodes, and missing affinities.
    #[arg(long)]
    repair: bool,
    #[command(flatten)]
    store: StoreFlags,
}

const WHAT: &str = "cannot check addresses";

impl Check {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let store = self.store.open(WHAT, false)?;
        let (allocator, rules) = (allocator(&*store), rules(&*store, WHAT)?);
        let read = || allocator.check(&rules).map_err(Failure::context(WHAT));
        let first = read()?;
        let report = if first.problems.is_empty() { first.clone() } else { read()? };
        let lasting = report.problems.iter().filter(|problem| first.problems.contains(problem));
        let (mut repaired, mut left): (Vec<&Problem>, Vec<&Problem>) = (Vec::new(), Vec::new());
        for problem in lasting {
            let done = self.repair && allocator.repair(problem).map_err(Failure::context(WHAT))?;
            if done { &mut repaired } else { &mut left }.push(problem);
        }
        let mut text = format!(
            "{} addresses of {} blocks are in use, by {} handles\n",
            report.addresses, report.blocks, report.handles
        );
        repaired.iter().for_each(|problem| text += &format!("repaired: {problem}\n"));
        left.iter().for_each(|problem| text += &format!("problem: {problem}\n"));
        if left.is_empty() {
            text += "no problems\n";
        }
        let one = |problem: &&Problem| json!({ "what": problem.to_string() });
        let list = |problems: &[&Problem]| problems.iter().map(one).collect::<Vec<_>>();
        let json = json!({
            "addresses": report.addresses, "blocks": report.blocks, "handles": report.handles,
            "repaired": list(&repaired), "problems": list(&left),
        });
        Ok(Output { text, json, success: left.is_empty() })
    }
}

//! `podwire ipam check`: does everything fit together?

use clap::Args;
use podwire_block_ipam::Problem;
use serde_json::json;

use super::place::{allocator, rules, Place};
use crate::{Answer, Failure};

pub(super) const EXAMPLES: &str = "Examples:
  podwire ipam check
  podwire ipam check --mend

Nothing has to be locked. What is being done at this moment may look like a problem: only what two looks find is told.
The exit status is 1 if a problem is left.";

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Mend what can be mended: handles that count wrong, claims to blocks that are somebody else's, blocks whose owner has
    /// no claim.
    #[arg(long)]
    mend: bool,
    #[command(flatten)]
    place: Place,
}

const WHAT: &str = "cannot check addresses";

impl Check {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let store = self.place.open(WHAT, false)?;
        let (allocator, rules) = (allocator(&*store), rules(&*store, WHAT)?);
        let look = || allocator.check(&rules).map_err(super::to(WHAT));
        let first = look()?;
        let report = if first.problems.is_empty() { first.clone() } else { look()? };
        let lasting = report.problems.iter().filter(|problem| first.problems.contains(problem));
        let (mut mended, mut left): (Vec<&Problem>, Vec<&Problem>) = (Vec::new(), Vec::new());
        for problem in lasting {
            let done = self.mend && allocator.repair(problem).map_err(super::to(WHAT))?;
            if done { &mut mended } else { &mut left }.push(problem);
        }
        let mut text = format!(
            "{} addresses of {} blocks are in use, by {} handles\n",
            report.addresses, report.blocks, report.handles
        );
        mended.iter().for_each(|problem| text += &format!("mended: {problem}\n"));
        left.iter().for_each(|problem| text += &format!("problem: {problem}\n"));
        if left.is_empty() {
            text += "everything fits together\n";
        }
        let list = |problems: &[&Problem]| problems.iter().map(ToString::to_string).collect::<Vec<_>>();
        let json = json!({
            "addresses": report.addresses, "blocks": report.blocks, "handles": report.handles,
            "mended": list(&mended), "problems": list(&left),
        });
        Ok(Answer { text, json, success: left.is_empty() })
    }
}

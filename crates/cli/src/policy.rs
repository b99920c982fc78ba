//! `podwire policy …`: tests network policies without a cluster, and explains them there or on a node.

mod expectation;
mod explain;
mod source;
mod test;

use clap::Subcommand;

pub(crate) use source::read_agent;
pub(crate) use test::{warning_json, warning_lines};

use crate::failure::Failure;
use crate::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Compare policies with expected verdicts.
    #[command(after_help = test::EXAMPLES)]
    Test(test::Test),
    /// Show which rule of which policy decides about a connection.
    #[command(after_help = explain::EXAMPLES)]
    Explain(explain::Explain),
}

impl Verb {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        match self {
            Verb::Test(verb) => verb.run(),
            Verb::Explain(verb) => verb.run(),
        }
    }
}

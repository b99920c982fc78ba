//! `podwire policy …`: network policies, tried without a cluster.

mod expectation;
mod explain;
mod source;
mod test;

use clap::Subcommand;
use podwire_policy::Warning;
use serde_json::{json, Value};

use crate::paint::Paint;
use crate::{Answer, Failure};

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Hold policies against the verdicts that are expected of them.
    #[command(after_help = test::EXAMPLES)]
    Test(test::Test),
    /// Say which rule of which policy decides about a connection, and why.
    #[command(after_help = explain::EXAMPLES)]
    Explain(explain::Explain),
}

impl Verb {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        match self {
            Verb::Test(verb) => verb.run(),
            Verb::Explain(verb) => verb.run(),
        }
    }
}

/// Warnings as lines of text.
fn warning_lines(warnings: &[Warning], paint: Paint) -> String {
    warnings.iter().map(|warning| format!("{} {warning}\n", paint.bad("warning:"))).collect()
}

fn warning_json(warning: &Warning) -> Value {
    json!({ "object": warning.object, "place": warning.field, "kind": format!("{:?}", warning.kind), "text": warning.text })
}

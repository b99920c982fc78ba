//! `podwire lab verify`.

use std::time::Duration;

use clap::Args;
use podwire_lab::Lab;
use podwire_verify::Report;
use serde_json::json;

use crate::paint::Paint;
use crate::{duration, prove, Answer, Failure};

#[derive(Debug, Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    lab: super::Named,
    /// How long to wait for an answer.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration::parse)]
    patience: Duration,
}

impl Verify {
    pub(super) fn run(&self) -> Result<Answer, Failure> {
        let name = &self.lab.name;
        let cannot = || format!("cannot prove anything about lab {name}");
        let lab = Lab::find(name).map_err(Failure::to(cannot()))?;
        let report = lab.verify(self.patience).map_err(Failure::to(cannot()))?;
        let paint = Paint::stdout();
        let mut json = report.to_json();
        let rule =
            |(rule, good, all): (&str, usize, usize)| json!({ "rule": rule, "held": good, "asked": all });
        json["rules"] = report.rules().map(rule).to_vec().into();
        let text = prove::text(&report, paint) + "\n" + &rules(&report, paint);
        Ok(Answer { success: report.holds(), ..Answer::new(text, json) })
    }
}

/// The three rules of the model, each with its count.
pub(crate) fn rules(report: &Report, paint: Paint) -> String {
    let line = |(rule, good, all): (&str, usize, usize)| {
        let mark = if good == all && all > 0 { paint.good("✓") } else { paint.bad("✗") };
        format!("  {mark} {rule:<40} {good} of {all} packets\n")
    };
    report.rules().map(line).concat()
}

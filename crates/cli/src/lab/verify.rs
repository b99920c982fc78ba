//! `podwire lab verify`.

use std::time::Duration;

use clap::Args;
use podwire_lab::Lab;
use podwire_verify::Report;
use serde_json::json;

use super::name_flag::NameFlag;
use crate::duration;
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;
use crate::verify;

#[derive(Debug, Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    lab: NameFlag,
    /// Time limit for an answer.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration::parse)]
    timeout: Duration,
}

impl Verify {
    pub(super) fn run(&self) -> Result<Output, Failure> {
        let name = &self.lab.name;
        let cannot = || format!("cannot verify lab {name}");
        let lab = Lab::find(name).map_err(Failure::context(cannot()))?;
        let report = lab.verify(self.timeout).map_err(Failure::context(cannot()))?;
        let paint = Paint::stdout();
        let mut json = report.to_json();
        let rule = |(rule, passed, sent): (&str, usize, usize)| json!({ "rule": rule, "passed": passed, "sent": sent });
        json["rules"] = report.rules().map(rule).to_vec().into();
        let text = verify::text(&report, paint) + "\n" + &rules(&report, paint);
        Ok(Output { success: report.holds(), ..Output::new(text, json) })
    }
}

/// The three rules of the network model, each with its packet counts.
fn rules(report: &Report, paint: Paint) -> String {
    let line = |(rule, passed, sent): (&str, usize, usize)| {
        let mark = if passed == sent && sent > 0 { paint.good("✓") } else { paint.bad("✗") };
        format!("  {mark} {rule:<40} {passed} of {sent} packets\n")
    };
    report.rules().map(line).concat()
}

//! `podwire lab verify`.

use std::time::Duration;

use clap::Args;
use podwire_lab::Lab;
use podwire_verify::{Count, Report, Rule};
use serde_json::json;

use super::name_flag::NameFlag;
use crate::duration;
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;
use crate::verify::{self, ProgressLine};

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
        let progress = ProgressLine::default();
        let report = lab.verify(self.timeout, &|now| progress.show(now));
        drop(progress);
        let report = report.map_err(Failure::context(cannot()))?;
        let paint = Paint::stdout();
        let mut json = report.to_json();
        let rule = |Rule { text, count: Count { sent, passed, denied } }: Rule| json!({ "rule": text, "passed": passed, "sent": sent, "denied": denied });
        json["rules"] = report.rules().map(rule).to_vec().into();
        let text = verify::text(&report, paint) + "\n" + &rules(&report, paint);
        Ok(Output { success: report.holds(), ..Output::new(text, json) })
    }
}

/// The three rules of the network model, each with its packet counts. What is missing proves none of them.
fn rules(report: &Report, paint: Paint) -> String {
    let line = |Rule { text, count }: Rule| {
        let is_proven = count.is_good() && count.sent > 0 && report.missing.is_empty();
        let mark = if is_proven { paint.good("✓") } else { paint.bad("✗") };
        let denied =
            if count.denied > 0 { format!(", policies deny {}", count.denied) } else { String::new() };
        format!("  {mark} {text:<40} {} of {} packets{denied}\n", count.passed, count.sent)
    };
    report.rules().map(line).concat()
}

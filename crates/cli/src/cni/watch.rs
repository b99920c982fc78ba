//! `podwire cni status --watch`: prints every change of the default network's readiness.

use std::io::Write;
use std::time::Duration;

use podwire_cni_runtime::{Catalogue, Problem, Readiness, Watch};
use serde_json::{json, Value};

use super::problem_json;
use super::runtime_flags::RuntimeFlags;
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;

/// The interval of STATUS calls: a plugin does not notify changes.
const INTERVAL: Duration = Duration::from_secs(5);

/// Prints the current state, then every change, until standard output is closed.
pub(super) fn run(flags: &RuntimeFlags, json: bool) -> Result<Output, Failure> {
    let what = || "cannot watch the network configs".to_owned();
    let mut catalogue = flags.catalogue();
    let mut watch = Watch::new(&mut catalogue).map_err(Failure::context(what()))?;
    let (mut printed, mut skipped) = (None, Vec::new());
    loop {
        let readiness = catalogue.readiness();
        let problems: Vec<String> = catalogue.skipped().iter().map(ToString::to_string).collect();
        if printed.as_ref() != Some(&readiness) || problems != skipped {
            let text = if json {
                format!("{}\n", as_json(&readiness, catalogue.skipped()))
            } else {
                lines(&catalogue, &readiness, &skipped, printed.as_ref())
            };
            let mut out = std::io::stdout().lock();
            if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
                return Ok(Output::new("", Value::Null));
            }
            (printed, skipped) = (Some(readiness), problems);
        }
        watch.next(&mut catalogue, INTERVAL).map_err(Failure::context(what()))?;
    }
}

/// The differences to the last print: newly skipped files and the readiness of the network.
fn lines(
    catalogue: &Catalogue<'_>,
    now: &Readiness,
    skipped: &[String],
    before: Option<&Readiness>,
) -> String {
    let paint = Paint::stdout();
    let all = catalogue.skipped().iter().map(ToString::to_string);
    let new = all.filter(|problem| !skipped.contains(problem));
    let mut text: String = new.map(|problem| format!("skipped {problem}\n")).collect();
    if before != Some(now) {
        text += &match now {
            Readiness::Ready { network, file } => {
                format!("{} {network} ({})\n", paint.good("ready"), file.display())
            }
            Readiness::NotReady { network, reason: why } => {
                let of = network.as_ref().map(|network| format!("{network}: ")).unwrap_or_default();
                format!("{} {of}{} ({})\n", paint.bad("not ready"), why.msg, why.code)
            }
        };
    }
    text
}

fn as_json(readiness: &Readiness, skipped: &[Problem]) -> Value {
    let error = match readiness {
        Readiness::Ready { .. } => None,
        Readiness::NotReady { reason: why, .. } => Some(why.to_json()),
    };
    let skipped = skipped.iter().map(problem_json);
    json!({
        "ready": readiness.is_ready(),
        "network": readiness.network(),
        "file": readiness.file(),
        "error": error,
        "skipped": skipped.collect::<Vec<_>>(),
    })
}

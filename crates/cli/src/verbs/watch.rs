//! `podwire cni status --watch`: the config folder, followed.

use std::io::Write;
use std::time::Duration;

use podwire_cni_runtime::{Catalogue, Problem, Readiness, Watch};
use serde_json::{json, Value};

use super::place::Place;
use crate::paint::Paint;
use crate::{Answer, Failure};

/// What plugins answer to STATUS is asked again after so long.
const PULSE: Duration = Duration::from_secs(5);

/// Prints what is so now, and then what changes, until its reader goes away.
pub(super) fn run(place: &Place, json: bool) -> Result<Answer, Failure> {
    let what = || "cannot watch the networks".to_owned();
    let mut catalogue = place.catalogue();
    let mut watch = Watch::new(&mut catalogue).map_err(Failure::to(what()))?;
    let (mut told, mut skipped) = (None, Vec::new());
    loop {
        let readiness = catalogue.readiness();
        let problems: Vec<String> = catalogue.skipped().iter().map(ToString::to_string).collect();
        if told.as_ref() != Some(&readiness) || problems != skipped {
            let text = match json {
                true => format!("{}\n", as_json(&readiness, catalogue.skipped())),
                false => lines(&catalogue, &readiness, &skipped, told.as_ref()),
            };
            let mut out = std::io::stdout().lock();
            if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
                return Ok(Answer::new("", Value::Null));
            }
            (told, skipped) = (Some(readiness), problems);
        }
        watch.next(&mut catalogue, PULSE).map_err(Failure::to(what()))?;
    }
}

/// What is new: files that are skipped now, and the network.
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
    let skipped = skipped
        .iter()
        .map(|problem| json!({ "file": problem.path, "error": problem.error.to_cni().to_json() }));
    json!({
        "ready": readiness.is_ready(),
        "network": readiness.network(),
        "file": readiness.file(),
        "error": error,
        "skipped": skipped.collect::<Vec<_>>(),
    })
}

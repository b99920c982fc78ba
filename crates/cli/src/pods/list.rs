//! `podwire pod list`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use podwire_sandbox::Pods;
use serde_json::{json, Value};

use super::status::{as_json, painted};
use crate::paint::Paint;
use crate::table::table;
use crate::verbs::Place;
use crate::{Answer, Failure};

pub(super) const EXAMPLES: &str = "Examples:
  podwire pod list
  podwire pod list --json | jq -r '.pods[] | select(.state != \"ready\") | .name'

ready        it runs
starting     somebody is about to run it
stopping     somebody stops it
stopped      it was stopped, and not removed
lost         its process is gone; `podwire pod rm` removes the rest
unfinished   whoever ran or stopped it died half way; `podwire pod rm` removes the rest";

#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    place: Place,
}

impl List {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let (pods, errors) = Pods::new(self.place.runtime()).list();
        let paint = Paint::stdout();
        let row = |pod: &podwire_sandbox::Status| {
            let host = pod.spec.as_ref().is_some_and(|spec| spec.host_network);
            let addresses: Vec<_> =
                pod.interfaces.iter().flat_map(|one| &one.addresses).map(ToString::to_string).collect();
            let networks: Vec<_> = pod.networks.iter().map(|(network, _)| network.as_str()).collect();
            vec![
                pod.name.namespace().to_owned(),
                pod.name.name().to_owned(),
                painted(pod.state, paint),
                addresses.join(" "),
                if host { "(host)".to_owned() } else { networks.join(" ") },
                pod.process.map(|process| process.pid.to_string()).unwrap_or_default(),
                pod.created.map(|created| age(since(created))).unwrap_or_default(),
            ]
        };
        let head = ["NAMESPACE", "NAME", "STATE", "ADDRESSES", "NETWORKS", "PROCESS", "AGE"];
        let mut text = match pods.is_empty() {
            true => "no pods\n".to_owned(),
            false => table(&head, &pods.iter().map(row).collect::<Vec<_>>(), paint),
        };
        text.extend(errors.iter().map(|error| format!("{} {error}\n", paint.bad("problem:"))));
        let problems: Vec<Value> = errors.iter().map(|error| error.to_cni().to_json()).collect();
        let json = json!({ "pods": pods.iter().map(as_json).collect::<Vec<_>>(), "problems": problems });
        Ok(Answer::new(text, json))
    }
}

/// How long ago that was, in seconds since 1970.
pub(super) fn since(created: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_secs(created))
}

/// An age as kubectl writes it.
pub(super) fn age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m", seconds / 60),
        seconds @ 7200..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        for (seconds, text) in
            [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (200_000, "2d")]
        {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }
}

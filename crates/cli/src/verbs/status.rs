//! `podwire cni status`: could another container be attached?

use clap::Args;
use podwire_cni_runtime::{Network, Runtime};
use serde_json::{json, Value};

use super::place::Place;
use crate::paint::Paint;
use crate::table::table;
use crate::{Answer, Failure};

pub(super) const EXAMPLES: &str = "Examples:
  podwire cni status                 every network
  podwire cni status pods --json
  podwire cni status --watch         tell of the default network whenever its readiness changes

Networks before version 1.1.0 cannot be asked; of those it is checked that every plugin is there and speaks the
network's version. The exit status is 1 if any network is not ready.";

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// The network, by the name in its config [default: all].
    network: Option<String>,
    /// Follow the config folder: a line whenever pods can be attached, or cannot any more, and why. With --json an object
    /// a line.
    #[arg(long, conflicts_with = "network")]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(super) place: Place,
}

impl Status {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let folder = self.place.folder();
        let networks = match &self.network {
            Some(name) => vec![folder.find(name).map_err(Failure::to(format!("cannot ask {name}")))?],
            None => folder.load().networks,
        };
        if networks.is_empty() {
            let nothing = folder.default_network().err();
            return Err(nothing.map_or_else(
                || {
                    Failure::new(
                        "no network is ready",
                        podwire_cni_spec::Error::internal("the networks changed meanwhile"),
                    )
                },
                Failure::to("no network is ready"),
            ));
        }
        let (runtime, paint) = (self.place.runtime(), Paint::stdout());
        let (mut rows, mut all, mut success) = (Vec::new(), Vec::<Value>::new(), true);
        for Network { list, .. } in &networks {
            let error = ask(&runtime, list).err().map(|error| error.to_cni());
            success &= error.is_none();
            let state = match &error {
                None => paint.good("ready"),
                Some(error) => paint.bad(&format!("not ready ({})", error.code)),
            };
            let why = error.as_ref().map(ToString::to_string).unwrap_or_default();
            rows.push(vec![list.name.to_string(), list.version.to_string(), state, why]);
            let error = error.map(|error| error.to_json());
            all.push(json!({ "network": list.name, "version": list.version, "ready": error.is_none(), "error": error }));
        }
        let text = table(&["NETWORK", "VERSION", "STATE", ""], &rows, paint);
        Ok(Answer { text, json: all.into(), success })
    }
}

fn ask(runtime: &Runtime<'_>, list: &podwire_cni_spec::NetworkList) -> podwire_cni_runtime::Result<()> {
    match list.version.has_status() {
        true => runtime.status(list),
        false => runtime.validate(list).map(drop),
    }
}

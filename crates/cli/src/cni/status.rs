//! `podwire cni status`: whether the networks can take another container.

use clap::Args;
use podwire_cni_runtime::Runtime;
use serde_json::{json, Value};

use super::runtime_flags::RuntimeFlags;
use super::warnings::{warning_json, warning_lines};
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;
use crate::table::table;

pub(super) const EXAMPLES: &str = "Examples:
  podwire cni status                 every network
  podwire cni status pods --json
  podwire cni status --watch         print every change of the default network

Networks older than version 1.1.0 have no STATUS. For them the command checks that every plugin
exists and supports the version of the network. The exit status is 1 if a network is not ready.";

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Name of the network, as in its config [default: all].
    network: Option<String>,
    /// Watch the config directory and print one line, or JSON object, for every change.
    #[arg(long, conflicts_with = "network")]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(super) flags: RuntimeFlags,
}

impl Status {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let configs = self.flags.configs();
        let networks = match &self.network {
            Some(name) => {
                vec![configs
                    .find(name)
                    .map_err(Failure::context(format!("cannot get the status of {name}")))?]
            }
            None => configs.load().networks,
        };
        if networks.is_empty() {
            let nothing = configs.default_network().err();
            return Err(nothing.map_or_else(
                || {
                    Failure::new(
                        "no network is ready",
                        podwire_cni_spec::Error::internal("the network configs changed while they were read"),
                    )
                },
                Failure::context("no network is ready"),
            ));
        }
        let (runtime, paint) = (self.flags.runtime(), Paint::stdout());
        let (mut rows, mut all, mut success) = (Vec::new(), Vec::<Value>::new(), true);
        let (mut warnings, loaded) = (String::new(), configs.load().networks);
        for network in &networks {
            let (list, found) = (&network.list, runtime.lint(network, &loaded));
            warnings += &warning_lines(&found, paint);
            let error = status(&runtime, list).err().map(|error| error.to_cni());
            success &= error.is_none();
            let state = match &error {
                None => paint.good("ready"),
                Some(error) => paint.bad(&format!("not ready ({})", error.code)),
            };
            let why = error.as_ref().map(ToString::to_string).unwrap_or_default();
            rows.push(vec![list.name.to_string(), list.version.to_string(), state, why]);
            let error = error.map(|error| error.to_json());
            all.push(json!({
                "name": list.name,
                "cniVersion": list.version,
                "ready": error.is_none(),
                "error": error,
                "warnings": found.iter().map(warning_json).collect::<Vec<_>>(),
            }));
        }
        let text = table(&["NETWORK", "VERSION", "STATE", ""], &rows, paint) + &warnings;
        Ok(Output { text, json: json!({ "networks": all }), success })
    }
}

fn status(runtime: &Runtime<'_>, list: &podwire_cni_spec::NetworkList) -> podwire_cni_runtime::Result<()> {
    if list.version.has_status() {
        runtime.status(list)
    } else {
        runtime.validate(list).map(drop)
    }
}

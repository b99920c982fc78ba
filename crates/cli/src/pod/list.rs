//! `podwire pod list`.

use clap::Args;
use podwire_sandbox::Pods;
use serde_json::{json, Value};

use super::age::{age, since};
use super::status::{as_json, painted, ports};
use crate::cni::RuntimeFlags;
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;
use crate::publish;
use crate::table::table;

pub(super) const EXAMPLES: &str = "Examples:
  podwire pod list
  podwire pod list --json | jq -r '.pods[] | select(.state != \"ready\") | .name'

States:
  ready        the pod runs
  starting     another command is starting the pod
  stopping     another command is stopping the pod
  stopped      the pod is stopped and not removed
  lost         the process of the pod ended by itself; `podwire pod rm` removes the rest
  unfinished   the command that started or stopped the pod died; `podwire pod rm` removes the rest";

#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    flags: RuntimeFlags,
}

impl List {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let (pods, errors) = Pods::new(self.flags.runtime()).list();
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
                publish::text(&ports(pod)),
                if host { "(host)".to_owned() } else { networks.join(" ") },
                pod.process.map(|process| process.pid.to_string()).unwrap_or_default(),
                pod.created.map(|created| age(since(created))).unwrap_or_default(),
            ]
        };
        let head = ["NAMESPACE", "NAME", "STATE", "ADDRESSES", "PORTS", "NETWORKS", "PROCESS", "AGE"];
        let mut text = match pods.is_empty() {
            true => "no pods\n".to_owned(),
            false => table(&head, &pods.iter().map(row).collect::<Vec<_>>(), paint),
        };
        text.extend(errors.iter().map(|error| format!("{} {error}\n", paint.bad("problem:"))));
        let problems: Vec<Value> = errors.iter().map(|error| error.to_cni().to_json()).collect();
        let json = json!({ "pods": pods.iter().map(as_json).collect::<Vec<_>>(), "problems": problems });
        Ok(Output::new(text, json))
    }
}

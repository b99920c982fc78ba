//! `podwire pod stop` and `rm`.

use clap::Args;
use podwire_sandbox::{PodName, Pods, Stopped};
use serde_json::json;

use super::batch::{conclude, each, named, Outcome};
use super::namespace_flag::NamespaceFlag;
use crate::cni::RuntimeFlags;
use crate::failure::Failure;
use crate::output::Output;

pub(super) const STOP_EXAMPLES: &str = "Examples:
  podwire pod stop web
  podwire pod stop --all

`podwire pod list` shows a stopped pod until it is removed. The command is idempotent.";

pub(super) const RM_EXAMPLES: &str = "Examples:
  podwire pod rm web
  podwire pod rm --all
  podwire pod rm web --force           also if a plugin fails

The command is idempotent. It works without the pod's process, namespaces, network config and plugin
files, and for a pod whose start or stop was interrupted.";

#[derive(Debug, Args)]
pub(crate) struct Stop {
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    flags: RuntimeFlags,
}

#[derive(Debug, Args)]
pub(crate) struct Rm {
    #[command(flatten)]
    selection: Selection,
    /// Remove the pod also if a plugin fails; `podwire cni gc` removes what the plugin left.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    flags: RuntimeFlags,
}

#[derive(Debug, Args)]
struct Selection {
    /// Pods: NAME or NAMESPACE/NAME; - reads names from standard input.
    #[arg(value_name = "POD", required_unless_present = "all")]
    pods: Vec<String>,
    /// All pods of all namespaces.
    #[arg(long, conflicts_with = "pods")]
    all: bool,
    #[command(flatten)]
    namespace: NamespaceFlag,
}

impl Selection {
    fn pods(&self, all: &Pods<'_>) -> Result<Vec<PodName>, Failure> {
        if self.all {
            return Ok(all.names());
        }
        named(&self.pods, &self.namespace)
    }
}

impl Stop {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let pods = Pods::new(self.flags.runtime());
        let outcome = each(&self.selection.pods(&pods)?, |pod| pods.stop(pod));
        conclude(output(&outcome, "stopped"), &outcome.failed, "stop")
    }
}

impl Rm {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let pods = Pods::new(self.flags.runtime());
        let outcome = each(&self.selection.pods(&pods)?, |pod| pods.remove(pod, self.force));
        conclude(output(&outcome, "removed"), &outcome.failed, "remove")
    }
}

fn output(outcome: &Outcome<Stopped>, done: &str) -> Output {
    let line = |(pod, stopped): &(PodName, Stopped)| match stopped {
        Stopped::Now => format!("{done} {pod}\n"),
        Stopped::Already => format!("nothing to do for {pod}\n"),
    };
    let json = outcome.done.iter().map(|(pod, stopped)| {
        json!({ "namespace": pod.namespace(), "name": pod.name(), done: *stopped == Stopped::Now })
    });
    let json = json!({ "pods": json.collect::<Vec<_>>() });
    Output::new(outcome.done.iter().map(line).collect::<String>(), json)
}

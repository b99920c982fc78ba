//! `podwire pod stop` and `rm`.

use clap::Args;
use podwire_sandbox::{PodName, Pods, Stopped};
use serde_json::json;

use super::several::{conclude, each, named, Outcome};
use super::Namespace;
use crate::verbs::Place;
use crate::{Answer, Failure};

pub(super) const STOP_EXAMPLES: &str = "Examples:
  podwire pod stop web
  podwire pod stop --all

A stopped pod is still shown by `podwire pod list`, until it is removed. It may be repeated.";

pub(super) const RM_EXAMPLES: &str = "Examples:
  podwire pod rm web
  podwire pod rm --all
  podwire pod rm web --force           though a plugin fails

It may be repeated, and works when the pod's process, its namespaces, the network's config or our plugins' files are gone,
and when whoever ran the pod died half way.";

#[derive(Debug, Args)]
pub(crate) struct Stop {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
pub(crate) struct Rm {
    #[command(flatten)]
    which: Which,
    /// Forget the pod even if a plugin fails: what that plugin holds is left to `podwire cni gc`.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
struct Which {
    /// The pods: NAME or NAMESPACE/NAME; - reads names from standard input.
    #[arg(value_name = "POD", required_unless_present = "all")]
    pods: Vec<String>,
    /// All pods of all namespaces.
    #[arg(long, conflicts_with = "pods")]
    all: bool,
    #[command(flatten)]
    namespace: Namespace,
}

impl Which {
    fn pods(&self, all: &Pods<'_>) -> Result<Vec<PodName>, Failure> {
        match self.all {
            true => Ok(all.names()),
            false => named(&self.pods, &self.namespace),
        }
    }
}

impl Stop {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let pods = Pods::new(self.place.runtime());
        let outcome = each(&self.which.pods(&pods)?, |pod| pods.stop(pod));
        conclude(answer(&outcome, "stopped"), &outcome.failed, "stop")
    }
}

impl Rm {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let pods = Pods::new(self.place.runtime());
        let outcome = each(&self.which.pods(&pods)?, |pod| pods.remove(pod, self.force));
        conclude(answer(&outcome, "removed"), &outcome.failed, "remove")
    }
}

fn answer(outcome: &Outcome<Stopped>, done: &str) -> Answer {
    let line = |(pod, stopped): &(PodName, Stopped)| match stopped {
        Stopped::Now => format!("{done} {pod}\n"),
        Stopped::Already => format!("nothing to do for {pod}\n"),
    };
    let json = outcome.done.iter().map(|(pod, stopped)| {
        json!({ "namespace": pod.namespace(), "name": pod.name(), done: *stopped == Stopped::Now })
    });
    Answer::new(outcome.done.iter().map(line).collect::<String>(), json.collect())
}

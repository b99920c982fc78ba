//! `podwire pod status`: the status of one pod, or the readiness of the node for pods.

use clap::Args;
use podwire_cni_runtime::Readiness;
use podwire_sandbox::{Error, Pods, State};
use serde_json::{json, Value};

use super::age::{age, since};
use super::namespace_flag::NamespaceFlag;
use crate::cni::{problem_json, RuntimeFlags};
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;
use crate::publish;

pub(super) const EXAMPLES: &str = "Examples:
  podwire pod status                   whether the network is ready for pods
  podwire pod status web
  podwire pod status web --json | jq -r '.ips[0]'

The addresses come from the kernel, in the namespace of the pod. The exit status is 1 if the pod, or
the network, is not ready.";

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Pod: NAME or NAMESPACE/NAME [default: the node].
    #[arg(value_name = "POD")]
    pod: Option<String>,
    #[command(flatten)]
    namespace: NamespaceFlag,
    #[command(flatten)]
    flags: RuntimeFlags,
}

impl Status {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        match &self.pod {
            Some(pod) => self.of_pod(pod),
            None => Ok(self.of_node()),
        }
    }

    fn of_pod(&self, pod: &str) -> Result<Output, Failure> {
        let name = self.namespace.pod(pod)?;
        let what = || format!("cannot get the status of pod {name}");
        let found = Pods::new(self.flags.runtime()).status(&name).map_err(Failure::context(what()))?;
        let status = found.ok_or_else(|| Failure::new(what(), Error::Unknown(name.clone()).to_cni()))?;
        let paint = Paint::stdout();
        let mut text = format!("{name} is {}\n", painted(status.state, paint));
        let mut line = |key: &str, value: String| text += &format!("  {key:<10}{value}\n");
        status.id.iter().for_each(|id| line("id", id.clone()));
        status.process.iter().for_each(|process| line("process", process.pid.to_string()));
        let on_host = status.spec.as_ref().is_some_and(|spec| spec.host_network);
        match (status.netns(), on_host) {
            (Some(_), true) => line("network", "the host's".into()),
            (Some(path), false) => line("namespace", path.display().to_string()),
            (None, _) => {}
        }
        for interface in &status.interfaces {
            let of = status.networks.iter().find(|(_, ifname)| *ifname == interface.name);
            let addresses: Vec<_> = interface.addresses.iter().map(ToString::to_string).collect();
            let network = of.map(|(network, _)| format!(" ({network})")).unwrap_or_default();
            let down = if interface.up { "" } else { " down" };
            line(&interface.name, format!("{}{network}{down}", addresses.join(" ")).trim_start().to_owned());
        }
        let ports = publish::text(&ports(&status));
        if !ports.is_empty() {
            line("ports", ports);
        }
        status.created.iter().for_each(|created| line("age", age(since(*created))));
        let success = status.state == State::Ready;
        Ok(Output { text, json: as_json(&status), success })
    }

    fn of_node(&self) -> Output {
        let (catalogue, paint) = (self.flags.catalogue(), Paint::stdout());
        let readiness = catalogue.readiness();
        let (mut text, error) = match &readiness {
            Readiness::Ready { network, file } => {
                (format!("network {}: {network} ({})\n", paint.good("ready"), file.display()), None)
            }
            Readiness::NotReady { network, reason: why } => {
                let of = network.as_ref().map(|network| format!(" {network}:")).unwrap_or_default();
                let advice = why.advice();
                let hint = if advice.is_empty() { String::new() } else { format!("\n  hint: {advice}") };
                (format!("network {}:{of} {}{hint}\n", paint.bad("not ready"), why.msg), Some(why.to_json()))
            }
        };
        text.extend(catalogue.skipped().iter().map(|problem| format!("skipped {problem}\n")));
        let pods = Pods::new(self.flags.runtime()).names().len();
        text += &format!("pods: {pods}\n");
        let networks: Vec<_> =
            catalogue.networks().iter().map(|network| network.list.name.to_string()).collect();
        let skipped: Vec<_> = catalogue.skipped().iter().map(problem_json).collect();
        let json = json!({
            "ready": readiness.is_ready(),
            "network": readiness.network(),
            "error": error,
            "networks": networks,
            "skipped": skipped,
            "pods": pods,
        });
        Output { text, json, success: readiness.is_ready() }
    }
}

pub(super) fn painted(state: State, paint: Paint) -> String {
    match state {
        State::Ready => paint.good("ready"),
        State::Lost | State::Unfinished => paint.bad(&state.to_string()),
        other => other.to_string(),
    }
}

/// The published ports of a pod. A stopped pod has none.
pub(super) fn ports(status: &podwire_sandbox::Status) -> Vec<Value> {
    status
        .spec
        .as_ref()
        .filter(|_| status.state != State::Stopped)
        .map(|spec| publish::published(&spec.ports))
        .unwrap_or_default()
}

pub(super) fn as_json(status: &podwire_sandbox::Status) -> Value {
    let interface = |one: &podwire_sandbox::Interface| {
        let addresses: Vec<_> = one.addresses.iter().map(ToString::to_string).collect();
        let network =
            status.networks.iter().find(|(_, ifname)| *ifname == one.name).map(|(network, _)| network);
        json!({ "name": one.name, "network": network, "up": one.up, "addresses": addresses })
    };
    let spec = status.spec.as_ref();
    json!({
        "namespace": status.name.namespace(),
        "name": status.name.name(),
        "state": status.state.to_string(),
        "id": status.id,
        "uid": spec.map(|spec| &spec.uid).filter(|uid| !uid.is_empty()),
        "pid": status.process.map(|process| process.pid),
        "netns": status.netns(),
        "hostNetwork": spec.map(|spec| spec.host_network),
        "ips": status.ips(),
        "ports": ports(status),
        "interfaces": status.interfaces.iter().map(interface).collect::<Vec<_>>(),
        "networks": status.networks.iter().map(|(network, _)| network).collect::<Vec<_>>(),
        "labels": spec.map(|spec| &spec.labels),
        "annotations": spec.map(|spec| &spec.annotations),
        "created": status.created,
    })
}

//! The pods of the nodes. This program runs them on each node, with the conflist of that node.

use std::net::IpAddr;
use std::path::PathBuf;

use podwire_ip::IpFamily;
use serde_json::Value;

use crate::{Lab, PodStatus, Result};

/// A pod of a node.
pub(crate) struct Pod {
    pub status: PodStatus,
    /// `namespace/name`.
    pub full_name: String,
    /// The path from here to its network namespace.
    pub netns: Option<PathBuf>,
    /// Why it cannot carry traffic.
    pub problem: Option<String>,
}

impl Lab {
    /// Runs the pods of these nodes, in parallel.
    pub(crate) fn run_pods(&self, nodes: &[String]) -> Result<()> {
        let on = |node: &String| {
            let names = [self.state.spec.pod_names(node), self.file_pods_on(node)].concat();
            (node.clone(), names)
        };
        self.run(nodes.iter().map(on).collect())?;
        self.publish_pods()
    }

    /// Runs pods, each on its node.
    pub(crate) fn run(&self, pods: Vec<(String, Vec<String>)>) -> Result<()> {
        let command = |(node, names): (String, Vec<String>)| {
            let mut words = self.own_command(&node, &["--json", "pod", "run"]);
            words.extend(names);
            for dir in &self.state.spec.plugin_dirs {
                words.extend(["--plugin-dir".into(), dir.display().to_string()]);
            }
            (node, words)
        };
        let some = pods.into_iter().filter(|(_, names)| !names.is_empty());
        let commands: Vec<_> = some.map(command).collect();
        self.exec_json("run pods", &commands).into_iter().collect::<Result<Vec<_>>>().map(drop)
    }

    /// The pods of all running nodes, by node.
    pub(crate) fn list_pods(&self) -> Vec<(String, Result<Vec<Pod>>)> {
        let nodes: Vec<String> = self.nodes().into_iter().filter(|node| self.process(node).is_ok()).collect();
        let command = |node: &String| (node.clone(), self.own_command(node, &["--json", "pod", "list"]));
        let answers = self.exec_json("list pods", &nodes.iter().map(command).collect::<Vec<_>>());
        let pods = |(node, answer): (String, Result<Value>)| {
            let parse = |answer: Value| {
                let all = answer["pods"].as_array().into_iter().flatten();
                all.map(|pod| self.parse_pod(&node, pod)).collect()
            };
            let pods = answer.map(parse);
            (node, pods)
        };
        nodes.into_iter().zip(answers).map(pods).collect()
    }

    /// Every pod that should be on a node, by `namespace/name`.
    pub(crate) fn expected_pods(&self, node: &str) -> Vec<String> {
        let own = self.state.spec.pod_names(node).into_iter().map(|name| format!("default/{name}"));
        own.chain(self.file_pods_on(node)).collect()
    }

    /// The pods of a node: those that `podwire pod list` shows, and those that it should show, each with its problem.
    pub(crate) fn pods_of(&self, node: &str, listed: Result<Vec<Pod>>) -> Vec<Pod> {
        let why = match &listed {
            Ok(_) => "it does not exist".to_owned(),
            Err(error) => error.to_string(),
        };
        let mut pods = listed.unwrap_or_default();
        for full_name in self.expected_pods(node) {
            if !pods.iter().any(|pod| pod.full_name == full_name) {
                let status = PodStatus { name: short(&full_name), state: "missing".into(), ips: Vec::new() };
                pods.push(Pod { status, full_name, netns: None, problem: Some(why.clone()) });
            }
        }
        pods.sort_by(|one, other| one.full_name.cmp(&other.full_name));
        pods
    }

    /// The problems of all pods, each with the name of the pod and its node.
    pub(crate) fn pod_problems(&self) -> Vec<String> {
        let of_node = |(node, listed): (String, Result<Vec<Pod>>)| {
            let pods = self.pods_of(&node, listed).into_iter();
            pods.filter_map(move |pod| Some(format!("pod {} on {node}: {}", pod.status.name, pod.problem?)))
        };
        self.list_pods().into_iter().flat_map(of_node).collect()
    }

    /// Reads a pod in the output of `podwire pod list`.
    fn parse_pod(&self, node: &str, pod: &Value) -> Pod {
        let text = |key: &str| pod[key].as_str().unwrap_or_default().to_owned();
        let ips = pod["ips"].as_array().into_iter().flatten();
        let ips: Vec<IpAddr> = ips.filter_map(|ip| ip.as_str()?.parse().ok()).collect();
        // The path contains a process id of the node's PID namespace, so it is resolved below the node's root.
        let netns = pod["netns"].as_str().and_then(|path| self.file(node, path).ok());
        let full_name = format!("{}/{}", text("namespace"), text("name"));
        let interfaces = pod["interfaces"].as_array().into_iter().flatten();
        let down = interfaces.filter(|one| one["up"] == false).find_map(|one| one["name"].as_str());
        let problem = problem(&text("state"), down, &ips, self.state.spec.families());
        let status = PodStatus { name: short(&full_name), state: text("state"), ips };
        Pod { status, full_name, netns, problem }
    }
}

/// The name without the namespace `default`.
fn short(full_name: &str) -> String {
    full_name.strip_prefix("default/").unwrap_or(full_name).to_owned()
}

/// Why a pod in this state, with an interface that is down and these addresses, cannot carry traffic.
fn problem(state: &str, down: Option<&str>, ips: &[IpAddr], families: &[IpFamily]) -> Option<String> {
    match state {
        "ready" => {}
        "lost" => return Some("it is lost: its process ended".into()),
        other => return Some(format!("it is {other}")),
    }
    if let Some(interface) = down {
        return Some(format!("its interface {interface} is down"));
    }
    let lacks = |family: &&IpFamily| !ips.iter().any(|ip| IpFamily::of(*ip) == **family);
    families.iter().find(lacks).map(|family| format!("it has no {family} address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_cannot_carry_traffic_has_a_problem() {
        let ips: Vec<IpAddr> = vec!["10.244.1.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        let of = |state, down, ips| problem(state, down, ips, &IpFamily::ALL).unwrap_or_default();
        assert_eq!(of("ready", None, &ips), "");
        assert_eq!(of("lost", None, &[]), "it is lost: its process ended");
        assert_eq!(of("unfinished", None, &ips), "it is unfinished");
        assert_eq!(of("ready", Some("eth0"), &ips), "its interface eth0 is down");
        assert_eq!(of("ready", None, &ips[..1]), "it has no IPv6 address");
        assert_eq!(problem("ready", None, &ips[..1], &[IpFamily::V4]), None);
    }
}

//! The pods of the nodes. This program runs them on each node, with the conflist of that node.

use std::net::IpAddr;
use std::path::PathBuf;

use serde_json::Value;

use crate::{Lab, PodStatus, Result};

/// A pod of a node.
pub(crate) struct Pod {
    pub status: PodStatus,
    /// `namespace/name`.
    pub full_name: String,
    /// The path from here to its network namespace.
    pub netns: Option<PathBuf>,
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

    /// Reads a pod in the output of `podwire pod list`.
    fn parse_pod(&self, node: &str, pod: &Value) -> Pod {
        let text = |key: &str| pod[key].as_str().unwrap_or_default().to_owned();
        let ips = pod["ips"].as_array().into_iter().flatten();
        let ips: Vec<IpAddr> = ips.filter_map(|ip| ip.as_str()?.parse().ok()).collect();
        // The path contains a process id of the node's PID namespace, so it is resolved below the node's root.
        let netns = pod["netns"].as_str().and_then(|path| self.file(node, path).ok());
        let full_name = format!("{}/{}", text("namespace"), text("name"));
        let name = full_name.strip_prefix("default/").unwrap_or(&full_name).to_owned();
        Pod { status: PodStatus { name, state: text("state"), ips }, full_name, netns }
    }
}

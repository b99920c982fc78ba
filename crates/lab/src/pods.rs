//! The nodes' pods: run by this program on the node, with the list of plugins that the node's agent wrote.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{Lab, PodStatus, Result};

/// Where plugins are on most machines.
const USUAL: [&str; 3] = ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"];

/// A pod that a node has.
pub(crate) struct Pod {
    pub status: PodStatus,
    /// `namespace/name`.
    pub full_name: String,
    /// Its network, as it is found from here.
    pub netns: Option<PathBuf>,
}

impl Lab {
    /// Runs the pods of these nodes, all nodes at once.
    pub(crate) fn run_pods(&self, nodes: &[String]) -> Result<()> {
        let on = |node: &String| {
            let names = [self.state.plan.pod_names(node), self.settled_on(node)].concat();
            (node.clone(), names)
        };
        self.run(nodes.iter().map(on).collect())?;
        self.publish_pods()
    }

    /// Runs pods, each on its node.
    pub(crate) fn run(&self, pods: Vec<(String, Vec<String>)>) -> Result<()> {
        let question = |(node, names): (String, Vec<String>)| {
            let mut words = self.own_words(&node, &["--json", "pod", "run"]);
            words.extend(names);
            for folder in &self.state.plan.plugin_dirs {
                words.extend(["--plugin-dir".into(), folder.display().to_string()]);
            }
            (node, words)
        };
        let some = pods.into_iter().filter(|(_, names)| !names.is_empty());
        let questions: Vec<_> = some.map(question).collect();
        self.ask("run pods", &questions).into_iter().collect::<Result<Vec<_>>>().map(drop)
    }

    /// The pods of all nodes that live, each with its node's name.
    pub(crate) fn list_pods(&self) -> Vec<(String, Result<Vec<Pod>>)> {
        let nodes: Vec<String> = self.nodes().into_iter().filter(|node| self.process(node).is_ok()).collect();
        let question = |node: &String| (node.clone(), self.own_words(node, &["--json", "pod", "list"]));
        let answers = self.ask("list pods", &nodes.iter().map(question).collect::<Vec<_>>());
        let pods = |(node, answer): (String, Result<Value>)| {
            let read = |answer: Value| {
                let all = answer["pods"].as_array().into_iter().flatten();
                all.map(|pod| self.read(&node, pod)).collect()
            };
            let pods = answer.map(read);
            (node, pods)
        };
        nodes.into_iter().zip(answers).map(pods).collect()
    }

    fn read(&self, node: &str, pod: &Value) -> Pod {
        let text = |key: &str| pod[key].as_str().unwrap_or_default().to_owned();
        let ips = pod["ips"].as_array().into_iter().flatten();
        let ips: Vec<IpAddr> = ips.filter_map(|ip| ip.as_str()?.parse().ok()).collect();
        // The number of its process is one of the node's: it is found among those.
        let netns = pod["netns"].as_str().and_then(|path| self.file(node, path).ok());
        let full_name = format!("{}/{}", text("namespace"), text("name"));
        let name = full_name.strip_prefix("default/").unwrap_or(&full_name).to_owned();
        Pod { status: PodStatus { name, state: text("state"), ips }, full_name, netns }
    }
}

/// Where this program's plugins are: beside it, as they were built, else where plugins usually are.
pub(crate) fn plugin_dirs() -> Vec<PathBuf> {
    let beside = std::env::current_exe().map(|own| own.with_file_name("cni")).ok();
    match beside.filter(|folder| folder.is_dir()) {
        Some(folder) => vec![folder],
        None => USUAL.iter().map(PathBuf::from).filter(|folder| Path::is_dir(folder)).collect(),
    }
}

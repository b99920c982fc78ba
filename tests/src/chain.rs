//! A chain of plugins, executed one after the other as containerd does.

use serde_json::{json, Value};

use crate::{Invocation, Node, Output, Pod};

/// A network: its plugins and their directory.
#[derive(Clone, Debug)]
pub struct Chain {
    /// `CNI_PATH`.
    pub path: String,
    /// The network's name.
    pub name: String,
    /// The config's version.
    pub version: String,
    /// The configs of the plugins.
    pub plugins: Vec<Value>,
}

impl Chain {
    /// A network `name` of version 1.0.0 with plugins from `path`.
    pub fn new(path: &str, name: &str, plugins: &[Value]) -> Chain {
        Chain { path: path.into(), name: name.into(), version: "1.0.0".into(), plugins: plugins.to_vec() }
    }

    /// The config of the `n`th plugin as it goes to its standard input.
    pub fn config(&self, n: usize) -> Value {
        let mut config = self.plugins[n].clone();
        config["name"] = json!(self.name);
        config["cniVersion"] = json!(self.version);
        config
    }

    /// ADD through the chain; panics if a plugin fails.
    pub fn add(&self, node: &Node, pod: &Pod) -> Value {
        self.try_add(node, pod)
            .unwrap_or_else(|failed| panic!("ADD {}: {}{}", pod.name, failed.stdout, failed.stderr))
    }

    /// ADD through the chain; the first failure as it was printed.
    pub fn try_add(&self, node: &Node, pod: &Pod) -> Result<Value, Output> {
        let mut result = Value::Null;
        for n in 0..self.plugins.len() {
            let mut call = Invocation::new(node, &self.path, "ADD", pod, &self.config(n));
            if n > 0 {
                call = call.prev(&result);
            }
            let output = call.run();
            if output.status != 0 {
                return Err(output);
            }
            result = output.result();
        }
        Ok(result)
    }

    /// CHECK through the chain; the first failure as it was printed.
    pub fn check(&self, node: &Node, pod: &Pod, result: &Value) -> Result<(), Output> {
        for n in 0..self.plugins.len() {
            let output = Invocation::new(node, &self.path, "CHECK", pod, &self.config(n)).prev(result).run();
            if output.status != 0 {
                return Err(output);
            }
        }
        Ok(())
    }

    /// DEL in reverse; panics if a plugin fails. `result` is the recorded result, if there is one.
    pub fn del(&self, node: &Node, pod: &Pod, result: Option<&Value>) {
        for n in (0..self.plugins.len()).rev() {
            let mut call = Invocation::new(node, &self.path, "DEL", pod, &self.config(n));
            if let Some(result) = result {
                call = call.prev(result);
            }
            let output = call.run();
            assert_eq!(
                output.status, 0,
                "DEL {} by {}: {}{}",
                pod.name, self.plugins[n]["type"], output.stdout, output.stderr
            );
        }
    }

    /// GC of every plugin, with these attachments (container, ifname) valid; panics if one fails.
    pub fn gc(&self, node: &Node, valid: &[(&str, &str)]) {
        let no_pod = Pod { name: String::new(), netns: String::new() };
        let list: Vec<_> = valid.iter().map(|(c, i)| json!({"containerID": c, "ifname": i})).collect();
        for n in 0..self.plugins.len() {
            let mut config = self.config(n);
            config["cniVersion"] = json!("1.1.0");
            config["cni.dev/valid-attachments"] = json!(list);
            config["cni.dev/attachments"] = json!(list);
            let output = Invocation::new(node, &self.path, "GC", &no_pod, &config).run();
            assert_eq!(
                output.status, 0,
                "GC by {}: {}{}",
                self.plugins[n]["type"], output.stdout, output.stderr
            );
        }
    }
}

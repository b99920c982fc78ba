//! The fixed error texts of the Go plugins: programs, runbooks and the Go plugins' own tests compare them word for word,
//! with their details. Each row is an error of containernetworking/plugins 1.9 or of its library; what Podwire adds is in
//! `hint`, which other runtimes do not read.

#![allow(clippy::unwrap_used)] // A test that cannot go on says so.

#[path = "../test_pod/mod.rs"]
mod test_pod;

mod addresses;
mod chained;
mod interfaces;
mod requests;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use podwire_cni_plugin::dispatch::{dispatch, Process};
use podwire_cni_plugin::Registry;
use podwire_plugins::PLUGINS;
use serde_json::{json, Value};
use test_pod::Pod;

/// A request that must fail.
pub struct Row {
    plugin: &'static str,
    verb: &'static str,
    /// The config; `cniVersion`, `name` and `type` are added unless it has them.
    config: Value,
    /// `CNI_ARGS`.
    args: &'static str,
    /// The text, and the details if the Go library has some.
    text: String,
}

/// An ADD.
pub fn add(plugin: &'static str, config: Value, text: &str) -> Row {
    Row { plugin, verb: "ADD", config, args: "", text: text.into() }
}

/// A CHECK.
pub fn check(plugin: &'static str, config: Value, text: &str) -> Row {
    Row { verb: "CHECK", ..add(plugin, config, text) }
}

/// Sends the rows to a pod; reports every one whose answer differs.
pub fn compare(pod: &Pod, rows: Vec<Row>) {
    let plugins = Executables::new(pod);
    let mut wrong = Vec::new();
    for row in rows {
        let mut config = row.config.clone();
        let object = config.as_object_mut().unwrap();
        for (key, value) in [("cniVersion", "1.1.0"), ("name", "net"), ("type", row.plugin)] {
            object.entry(key).or_insert(json!(value));
        }
        let request = Request { args: row.args.into(), path: plugins.folder(), ..Request::of(pod, row.verb) };
        let found = request.send(row.plugin, &config.to_string());
        if text(&found) != row.text {
            wrong.push(format!(
                "{} {} {}:\n  {}\n  not {}",
                row.plugin, row.verb, row.config, found, row.text
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What Go's `types.Error` prints: text and details.
pub fn text(error: &Value) -> String {
    let part = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
    if part("details").is_empty() {
        return part("msg");
    }
    format!("{}; {}", part("msg"), part("details"))
}

/// The environment of a request.
#[derive(Clone)]
pub struct Request {
    verb: String,
    container: String,
    netns: String,
    ifname: String,
    args: String,
    path: String,
}

impl Request {
    /// For `eth0` of the pod.
    pub fn of(pod: &Pod, verb: &str) -> Request {
        Request {
            verb: verb.into(),
            container: pod.container.clone(),
            netns: pod.netns.display().to_string(),
            ifname: "eth0".into(),
            args: String::new(),
            path: "/nowhere".into(),
        }
    }

    /// What the plugin prints: a result or an error; null for nothing.
    pub fn send(&self, plugin: &str, config: &str) -> Value {
        let plugin = *PLUGINS.iter().find(|one| one.name() == plugin).unwrap();
        let env = |name: &str| {
            Some(match name {
                "CNI_COMMAND" => self.verb.clone(),
                "CNI_CONTAINERID" => self.container.clone(),
                "CNI_NETNS" => self.netns.clone(),
                "CNI_IFNAME" => self.ifname.clone(),
                "CNI_ARGS" => self.args.clone(),
                "CNI_PATH" => self.path.clone(),
                _ => return None,
            })
        };
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let mut process =
            Process { env: &env, stdin: &mut config.as_bytes(), stdout: &mut stdout, stderr: &mut stderr };
        dispatch(plugin, &Registry::none(), &mut process);
        serde_json::from_slice(&stdout).unwrap_or(Value::Null)
    }
}

/// A folder with two IPAM plugins: `none` gives no address, `one` gives 10.1.0.5/24 with the gateway 10.1.0.1.
struct Executables(PathBuf);

impl Executables {
    fn new(pod: &Pod) -> Executables {
        let folder = std::env::temp_dir().join(format!("texts-{}", pod.container));
        fs::create_dir_all(&folder).unwrap();
        for (name, ips) in
            [("none", json!([])), ("one", json!([{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}]))]
        {
            let result = json!({"cniVersion": "1.1.0", "ips": ips});
            fs::write(folder.join(name), format!("#!/bin/sh\ncat >/dev/null\necho '{result}'\n")).unwrap();
            fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        Executables(folder)
    }

    fn folder(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for Executables {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

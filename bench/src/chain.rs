//! A plugin chain, run as libcni runs it: ADD in order, each plugin with the result of the previous one; DEL in
//! reverse, each with the final result of ADD.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{bail, Context, Result};
use podwire_cni_runtime::{Identity, Runtime};
use podwire_cni_spec::NetworkList;
use serde_json::{json, Map, Value};

use crate::exec::{clean, timed, Ended};
use crate::protocol::{Invocation, Setup, Verb};
use crate::scenario::COUNTED;

/// The pods' interface.
pub const IFNAME: &str = "eth0";
/// Host ports of a pod, in networks with port mappings.
const PORTS: u32 = 2;
const FIRST_PORT: u32 = 10_000;
const CONFIGS: &str = "/run/podwire-bench/net.d";
const CACHE: &str = "/var/lib/cni";

/// The namespace file of a pod.
pub fn namespace(pod: u32) -> PathBuf {
    PathBuf::from(format!("/run/netns/pod{pod}"))
}

/// A container id as containerd makes them: 64 hexadecimal digits.
pub fn container(pod: u32) -> String {
    format!("{pod:064x}")
}

/// The outcome of an operation.
#[derive(Debug)]
pub struct Done {
    /// Microseconds in plugins.
    pub micros: f64,
    /// ADD's result.
    pub result: Option<Value>,
    /// What went wrong.
    pub fault: Option<String>,
}

/// A network, and what attaches pods to it.
#[derive(Debug)]
pub struct Chain {
    invocation: Invocation,
    name: String,
    version: String,
    plugins: Vec<Map<String, Value>>,
    list: NetworkList,
    /// The only plugin whose time counts; without it all plugins' times count.
    counted: Option<String>,
}

impl Chain {
    /// Reads the network of a setup. `podwire cni` reads it from a file, which is written here.
    pub fn new(setup: &Setup) -> Result<Chain> {
        let text = |key: &str| setup.network[key].as_str().unwrap_or_default().to_owned();
        let plugins = setup.network["plugins"].as_array().cloned().unwrap_or_default();
        if matches!(setup.invocation, Invocation::Tool { .. }) {
            std::fs::create_dir_all(CONFIGS)?;
            std::fs::write(format!("{CONFIGS}/10-bench.conflist"), setup.network.to_string())?;
        }
        Ok(Chain {
            invocation: setup.invocation.clone(),
            name: text("name"),
            version: text("cniVersion"),
            counted: setup.network[COUNTED].as_str().map(str::to_owned),
            list: NetworkList::parse(setup.network.to_string().as_bytes())?,
            plugins: plugins.into_iter().filter_map(|p| p.as_object().cloned()).collect(),
        })
    }

    /// The network's name.
    pub fn network(&self) -> &str {
        &self.name
    }

    /// Whether pods need namespaces.
    pub fn has_pods(&self) -> bool {
        !matches!(self.invocation, Invocation::Ipam { .. })
    }

    /// Runs VERSION of a plugin.
    pub fn version_of(&self, plugin: &str) -> Result<Done> {
        let file = match &self.invocation {
            Invocation::Plugins { folder }
            | Invocation::Ipam { folder }
            | Invocation::Runtime { folder }
            | Invocation::Tool { folder, .. } => folder.join(plugin),
            Invocation::Program { file } => file.clone(),
        };
        let mut command = clean(file);
        command.env("CNI_COMMAND", "VERSION");
        let ended = timed(command, br#"{"cniVersion":"1.0.0"}"#)?;
        let result: Option<Value> = serde_json::from_slice(&ended.output).ok();
        let has_versions = result.as_ref().is_some_and(|r| r["supportedVersions"].is_array());
        let fault = ended
            .fault
            .or((!has_versions).then(|| format!("{plugin}: VERSION printed no supportedVersions")));
        Ok(Done { micros: ended.micros, result, fault })
    }

    /// Runs a verb for a pod. `previous` is the result of its ADD.
    pub fn run(&self, verb: Verb, pod: u32, previous: Option<&Value>) -> Result<Done> {
        match &self.invocation {
            Invocation::Runtime { folder } => return self.through_runtime(folder, verb, pod),
            Invocation::Tool { file, folder } => return self.through_tool(file, folder, verb, pod),
            _ => {}
        }
        let mut done = Done { micros: 0.0, result: previous.cloned(), fault: None };
        let mut plugins: Vec<&Map<String, Value>> = self.plugins.iter().collect();
        if verb == Verb::Del {
            plugins.reverse();
        }
        for plugin in plugins {
            let ended = self.exec(verb, pod, plugin, done.result.as_ref())?;
            if self.counted.as_deref().is_none_or(|counted| plugin["type"] == counted) {
                done.micros += ended.micros;
            }
            match (ended.fault, verb) {
                (None, Verb::Add) => match serde_json::from_slice(&ended.output) {
                    Ok(result) => done.result = Some(result),
                    Err(error) => done.fault = Some(format!("ADD's result is not JSON: {error}")),
                },
                (None, Verb::Del) => {}
                (Some(fault), _) => done.fault = Some(fault),
            }
            if done.fault.is_some() {
                break;
            }
        }
        Ok(done)
    }

    fn exec(
        &self,
        verb: Verb,
        pod: u32,
        plugin: &Map<String, Value>,
        previous: Option<&Value>,
    ) -> Result<Ended> {
        let mut config = plugin.clone();
        config.insert("name".into(), self.name.clone().into());
        config.insert("cniVersion".into(), self.version.clone().into());
        if let Some(previous) = previous.filter(|_| self.has_pods()) {
            config.insert("prevResult".into(), previous.clone());
        }
        if takes_ports(plugin) {
            config.insert("runtimeConfig".into(), json!({ "portMappings": ports(pod) }));
        }
        let kind = |value: Option<&Value>| -> Result<String> {
            Ok(value.and_then(Value::as_str).context("a plugin without a type")?.to_owned())
        };
        let (file, folder) = match &self.invocation {
            Invocation::Plugins { folder } => (folder.join(kind(plugin.get("type"))?), folder.clone()),
            Invocation::Ipam { folder } => {
                (folder.join(kind(plugin.get("ipam").and_then(|i| i.get("type")))?), folder.clone())
            }
            Invocation::Program { file } => {
                (file.clone(), file.parent().unwrap_or(Path::new("/")).to_owned())
            }
            Invocation::Runtime { .. } | Invocation::Tool { .. } => {
                bail!("the runtime executes plugins itself")
            }
        };
        let mut command = clean(file);
        command
            .env("CNI_COMMAND", verb.text())
            .env("CNI_CONTAINERID", container(pod))
            .env("CNI_NETNS", namespace(pod))
            .env("CNI_IFNAME", IFNAME)
            .env("CNI_ARGS", "IgnoreUnknown=1")
            .env("CNI_PATH", folder);
        timed(command, &serde_json::to_vec(&config)?)
    }

    /// Runs a verb in this process, as a container runtime written in Rust does.
    fn through_runtime(&self, folder: &Path, verb: Verb, pod: u32) -> Result<Done> {
        let registry = podwire_plugins::registry();
        let runtime = Runtime::new([folder]).cache_folder(CACHE).registry(registry);
        let pod = Identity::new(&container(pod), "eth0")?
            .netns(namespace(pod))
            .capability("portMappings", ports(pod));
        let start = Instant::now();
        let ended = match verb {
            Verb::Add => runtime.add(&self.list, &pod).map(Some),
            Verb::Del => runtime.del(&self.list, &pod).map(|()| None),
        };
        let micros = start.elapsed().as_secs_f64() * 1e6;
        match ended {
            Ok(result) => {
                let result = result.map(|result| result.to_json(self.list.version)).transpose()?;
                Ok(Done { micros, result, fault: None })
            }
            Err(error) => Ok(Done { micros, result: None, fault: Some(error.to_string()) }),
        }
    }

    fn through_tool(&self, file: &Path, folder: &Path, verb: Verb, pod: u32) -> Result<Done> {
        let mut command = clean(file);
        command.args(["cni", &verb.text().to_lowercase(), &self.name]).arg(namespace(pod));
        command.args(["--container", &container(pod), "--conf-dir", CONFIGS, "--cache-dir", CACHE]);
        command.arg("--plugin-dir").arg(folder);
        if self.plugins.iter().any(takes_ports) {
            command.args(["--capability", &format!("portMappings={}", ports(pod))]);
        }
        if verb == Verb::Add {
            command.arg("--json");
        }
        let ended = timed(command, b"")?;
        let result = (verb == Verb::Add).then(|| serde_json::from_slice(&ended.output).ok()).flatten();
        Ok(Done { micros: ended.micros, result, fault: ended.fault })
    }
}

/// Whether the plugin has the capability `portMappings`.
fn takes_ports(plugin: &Map<String, Value>) -> bool {
    plugin.get("capabilities").is_some_and(|all| all["portMappings"] == json!(true))
}

/// A pod's ports on the host.
fn ports(pod: u32) -> Value {
    let first = FIRST_PORT + (pod * PORTS) % 50_000;
    (0..PORTS).map(|n| json!({"hostPort": first + n, "containerPort": 80 + n, "protocol": "tcp"})).collect()
}

/// The first address of a result, with its prefix length, and its gateway.
pub fn address(result: &Value) -> Option<(String, Option<String>)> {
    let first = &result["ips"][0];
    Some((first["address"].as_str()?.to_owned(), first["gateway"].as_str().map(str::to_owned)))
}

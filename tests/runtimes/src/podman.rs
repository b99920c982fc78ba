//! podman on a stage, configured as in docs/podman.md.

use std::ops::Deref;

use podwire_tests::{podwire, Output};

use crate::engine::{ContainerInfo, ContainerSpec, Engine, SERVE};
use crate::{guide, image, Daemon, Stage};

const GUIDE: &str = "docs/podman.md";
const CONFIG: &str = "/etc/containers/containers.conf";

/// podman with the images of the tests, on a stage.
#[derive(Debug)]
pub struct Podman {
    stage: Stage,
    /// The network of new containers.
    network: String,
}

impl Podman {
    /// podman with the config of the guide, and this network for its containers.
    pub fn new(stage: Stage, network: &str) -> Podman {
        stage.write(CONFIG, &guide::block(GUIDE, "toml", "cni_plugin_dirs"));
        let podman = Podman { stage, network: network.into() };
        podman.must(&["info"]);
        for image in podman.images() {
            podman.must(&["load", "-i", &image]);
        }
        podman
    }

    /// The network in the guide, with limits.
    pub fn limited_network() -> String {
        guide::block(GUIDE, "json", "bandwidth")
    }

    /// Cleans up after a crash with the commands of the guide.
    #[track_caller]
    pub fn sweep(&self) {
        let script = guide::block(GUIDE, "sh", "podwire cni gc");
        let program = podwire();
        let tools = program.trim_end_matches("podwire");
        let printed = self.stage.sh(&format!("set -e; PATH={tools}:$PATH\n{script}"));
        println!("{printed}");
    }

    /// Changes the network of new containers.
    pub fn set_network(&mut self, network: &str) {
        self.network = network.into();
    }

    /// Runs `podman` with these arguments.
    pub fn call(&self, words: &[&str]) -> Output {
        self.output(&[&["podman"], words].concat(), &[])
    }

    /// Runs `podman` and returns what it prints; panics if it fails.
    #[track_caller]
    pub fn must(&self, words: &[&str]) -> String {
        let output = self.call(words);
        assert_eq!(output.status, 0, "podman {}: {}{}", words.join(" "), output.stdout, output.stderr);
        output.stdout.trim().into()
    }

    /// Runs `podman`, which must fail with one line that begins with `Error:`. Returns that line and the warnings.
    #[track_caller]
    pub fn refuses(&self, words: &[&str]) -> (String, String) {
        let output = self.call(words);
        assert_ne!(output.status, 0, "podman {}: {}", words.join(" "), output.stdout);
        let (errors, warnings): (Vec<_>, Vec<_>) =
            output.stderr.lines().partition(|line| line.starts_with("Error:"));
        assert_eq!(errors.len(), 1, "one clear line: {}", output.stderr);
        (errors[0].into(), warnings.join("\n"))
    }

    /// The arguments of a `podman run` in the background.
    pub fn words(&self, spec: &ContainerSpec) -> Vec<String> {
        let name = format!("NAME={}", spec.name);
        let fixed = ["run", "-d", "--name", &spec.name, "--env", &name, "--network", &self.network];
        let mut words: Vec<String> = fixed.map(String::from).to_vec();
        // podman's containers have no permission to ping by default.
        words.push("--cap-add=NET_RAW".into());
        for (host, container) in &spec.ports {
            words.extend(["-p".into(), format!("{host}:{container}")]);
        }
        words.extend(spec.options.iter().cloned());
        words.extend([image::BOX, "sh", "-c", SERVE].map(String::from));
        words
    }

    /// Starts `podman` in the background.
    pub fn begin(&self, words: &[&str]) -> Daemon {
        self.daemon(&[&["podman"], words].concat())
    }

    /// A running container.
    pub fn container(&self, name: &str) -> ContainerInfo {
        let reported = self.must(&["inspect", "--format", "{{.Id}} {{.NetworkSettings.SandboxKey}}", name]);
        let (id, netns) = reported.split_once(' ').expect("an id and a namespace");
        let pod = podwire_tests::Pod {
            name: netns.rsplit('/').next().unwrap_or_default().into(),
            netns: netns.into(),
        };
        ContainerInfo { id: id.into(), addresses: self.addresses(netns, "eth0"), pod }
    }
}

impl Deref for Podman {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

impl Engine for Podman {
    fn stage(&self) -> &Stage {
        &self.stage
    }

    fn try_run(&self, spec: &ContainerSpec) -> Result<ContainerInfo, String> {
        let words = self.words(spec);
        let output = self.call(&words.iter().map(String::as_str).collect::<Vec<_>>());
        match output.status {
            0 => Ok(self.container(&spec.name)),
            _ => Err(output.stderr),
        }
    }

    fn try_exec(&self, name: &str, script: &str) -> Result<String, String> {
        let output = self.call(&["exec", name, "sh", "-c", script]);
        match output.status {
            0 => Ok(output.stdout),
            status => Err(format!("{status}: {}{}", output.stdout, output.stderr)),
        }
    }

    fn remove(&self, name: &str) {
        self.must(&["rm", "-f", "-t", "0", name]);
    }
}

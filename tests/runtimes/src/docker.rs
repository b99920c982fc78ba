//! Docker on a stage, configured as in docs/docker.md: Docker gives containers no network, and `podwire cni` attaches
//! them.

use std::ops::Deref;

use podwire_tests::{podwire, Output, Pod};

use crate::engine::{ContainerInfo, ContainerSpec, Engine, SERVE};
use crate::{guide, image, Daemon, Gate, Stage, Then, GATES};

const GUIDE: &str = "docs/docker.md";
const CONFIG: &str = "/etc/docker/daemon.json";
const NETWORK: &str = "/etc/cni/net.d/10-pods.conflist";
const LET_DIE: &str = "timeout 60 sh -c 'while kill -0 $(cat /run/docker/containerd/containerd.pid); do sleep 0.05; done' 2>/dev/null || true";
/// The script of the guide.
const DOCKER_NET: &str = "/run/test/docker-net";

/// dockerd with the images of the tests, on a stage.
#[derive(Debug)]
pub struct Docker {
    stage: Stage,
    daemon: Option<Daemon>,
}

impl Docker {
    /// Starts dockerd with the config and the network of the guide, and loads the images.
    pub fn start(stage: Stage) -> Docker {
        stage.write(CONFIG, &guide::block(GUIDE, "json", "live-restore"));
        stage.write(NETWORK, &Docker::network());
        stage.write(DOCKER_NET, &guide::block(GUIDE, "sh", "#!/bin/sh"));
        stage.sh(&format!("chmod 755 {DOCKER_NET}"));
        let mut docker = Docker { stage, daemon: None };
        docker.restart();
        for image in docker.images() {
            docker.must(&["docker", "load", "-i", &image]);
        }
        docker
    }

    /// The network in the guide.
    pub fn network() -> String {
        guide::block(GUIDE, "json", "portmap")
    }

    /// Replaces the network of the containers by another one of the same name.
    pub fn set_network(&self, network: &str) {
        self.write(NETWORK, network);
    }

    /// Starts it again after it was killed or stopped, and waits until it serves.
    pub fn restart(&mut self) {
        assert!(self.daemon.is_none(), "dockerd runs");
        // The containerd of a killed dockerd ends shortly after it. A new dockerd that still finds it would use it, and
        // wait for it forever.
        self.stage.sh(LET_DIE);
        let path = format!("PATH={GATES}:/usr/sbin:/usr/bin:/sbin:/bin");
        let mut daemon = self.stage.daemon(&["env", &path, "dockerd"]);
        daemon.expect(&["API listen on"]);
        self.daemon = Some(daemon);
    }

    /// Kills it, as in a crash. Containers keep running.
    pub fn kill(&mut self) {
        self.daemon.take().expect("dockerd runs").kill(&self.stage);
    }

    /// Stops it. Containers keep running.
    pub fn stop(&mut self) {
        self.daemon.take().expect("dockerd runs").stop(&self.stage);
    }

    /// Runs `docker`, and kills dockerd while a program waits at the gate.
    pub fn kill_at(&mut self, gate: Gate, then: Then, words: &[String]) {
        gate.put_up(&self.stage);
        let client = self.stage.daemon(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let daemon = self.daemon.take().expect("dockerd runs");
        gate.pass(&self.stage, then, || daemon.kill(&self.stage));
        gate.take_away(&self.stage);
        drop(client);
    }

    /// Cleans up after a crash with the commands of the guide.
    #[track_caller]
    pub fn sweep(&self) {
        let script = guide::block(GUIDE, "sh", "podwire cni audit --fix");
        println!("{}", self.must(&["sh", "-e", "-c", &script]));
    }

    /// Runs a program of the guide: `docker`, `docker-net` or `podwire`.
    pub fn call(&self, words: &[&str]) -> Output {
        let program = podwire();
        let tools = program.trim_end_matches("podwire");
        let path = format!("/run/test:{tools}:/usr/sbin:/usr/bin:/sbin:/bin");
        let words: Vec<_> = ["env"].iter().chain(words).copied().collect();
        self.output(&words, &[("PATH", &path)])
    }

    /// Runs a program of the guide and returns what it prints; panics if it fails.
    #[track_caller]
    pub fn must(&self, words: &[&str]) -> String {
        let output = self.call(words);
        assert_eq!(output.status, 0, "{}: {}{}", words.join(" "), output.stdout, output.stderr);
        output.stdout.trim().into()
    }

    /// The arguments of a `docker run` in the background.
    pub fn words(&self, spec: &ContainerSpec) -> Vec<String> {
        let name = format!("NAME={}", spec.name);
        let fixed = ["docker", "run", "-d", "--name", &spec.name, "--env", &name, "--net", "none"];
        let mut words: Vec<String> = fixed.map(String::from).to_vec();
        words.extend(spec.options.iter().cloned());
        words.extend([image::BOX, "sh", "-c", SERVE].map(String::from));
        words
    }

    /// Starts a container without a network. The error is Docker's.
    pub fn try_create(&self, spec: &ContainerSpec) -> Result<String, String> {
        let words = self.words(spec);
        let output = self.call(&words.iter().map(String::as_str).collect::<Vec<_>>());
        match output.status {
            0 => Ok(output.stdout.trim().into()),
            _ => Err(output.stderr),
        }
    }

    /// Attaches a container to the network, with these options of `podwire cni add`. The error is what it prints.
    pub fn try_attach(&self, name: &str, options: &[&str]) -> Result<ContainerInfo, String> {
        let output = self.call(&[&["docker-net", "add", "pods", name], options].concat());
        match output.status {
            0 => Ok(self.container(name)),
            _ => Err(output.stderr),
        }
    }

    /// A running container.
    pub fn container(&self, name: &str) -> ContainerInfo {
        let reported =
            self.must(&["docker", "inspect", "--format", "{{.Id}} {{.NetworkSettings.SandboxKey}}", name]);
        let (id, netns) = reported.split_once(' ').expect("an id and a namespace");
        // Docker keeps namespaces in its own directory. This name makes the namespace known to `ip netns`.
        let known = format!("docker-{}", &id[..12]);
        self.sh(&format!("ln -sf {netns} /run/netns/{known}"));
        let pod = Pod { name: known, netns: netns.into() };
        ContainerInfo { id: id.into(), addresses: self.addresses(netns, "eth0"), pod }
    }
}

impl Deref for Docker {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

impl Engine for Docker {
    fn stage(&self) -> &Stage {
        &self.stage
    }

    fn try_run(&self, spec: &ContainerSpec) -> Result<ContainerInfo, String> {
        self.try_create(spec)?;
        let ports: Vec<_> =
            spec.ports.iter().map(|(host, container)| format!("{host}:{container}")).collect();
        let options: Vec<_> = ports.iter().flat_map(|port| ["--publish", port]).collect();
        self.try_attach(&spec.name, &options)
    }

    fn try_exec(&self, name: &str, script: &str) -> Result<String, String> {
        let output = self.call(&["docker", "exec", name, "sh", "-c", script]);
        match output.status {
            0 => Ok(output.stdout),
            status => Err(format!("{status}: {}{}", output.stdout, output.stderr)),
        }
    }

    fn remove(&self, name: &str) {
        let id = self.must(&["docker", "inspect", "--format", "{{.Id}}", name]);
        self.must(&["docker-net", "del", "pods", name]);
        self.must(&["docker", "rm", "-f", name]);
        self.sh(&format!("rm -f /run/netns/docker-{}", &id[..12]));
    }
}

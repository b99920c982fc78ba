//! containerd on a stage, configured as in docs/containerd.md.

use std::ops::Deref;

use crate::{guide, Cri, Daemon, Gate, Stage, Then, GATES};

/// The socket of containerd, on its stage.
pub const SOCKET: &str = "/run/containerd/containerd.sock";
/// The network of its pods, on its stage.
pub const NETWORK: &str = "/etc/cni/net.d/10-pods.conflist";

const CONFIG: &str = "/etc/containerd/config.toml";
/// The PATH of containerd, after [`GATES`].
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const GUIDE: &str = "docs/containerd.md";

/// containerd with the images of the tests, on a stage.
#[derive(Debug)]
pub struct Containerd {
    stage: Stage,
    daemon: Option<Daemon>,
    /// The PATH of its programs.
    path: String,
}

/// Differences from the guide's configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unlike<'a> {
    /// The image of the container that holds a pod's namespaces.
    pub pause: Option<&'a str>,
    /// The directory with containerd's programs.
    pub programs: Option<&'a str>,
    /// Writes no network: the installer under test writes it.
    pub no_network: bool,
}

impl Containerd {
    /// Starts containerd with the config and the network of the guide, and loads the images.
    pub fn start(stage: Stage) -> Containerd {
        Containerd::start_unlike(stage, Unlike::default())
    }

    /// The same, with these differences from the guide.
    pub fn start_unlike(stage: Stage, unlike: Unlike<'_>) -> Containerd {
        let config = guide::block(GUIDE, "toml", "sandbox_image");
        let pause = config.lines().find(|line| line.trim_start().starts_with("sandbox_image = "));
        let pause = pause.unwrap_or_else(|| panic!("{GUIDE} sets no sandbox_image"));
        let wanted = unlike.pause.unwrap_or(crate::image::PAUSE);
        stage.write(CONFIG, &config.replace(pause, &format!("  sandbox_image = \"{wanted}\"")));
        if !unlike.no_network {
            stage.write(NETWORK, &network());
        }
        let path =
            [Some(GATES), unlike.programs, Some(PATH)].into_iter().flatten().collect::<Vec<_>>().join(":");
        let mut containerd = Containerd { stage, daemon: None, path };
        containerd.restart();
        for image in containerd.images() {
            let import = |namespace: &str| format!("ctr --namespace {namespace} images import {image}");
            let [pods, others] = [import("k8s.io"), import("default")];
            containerd.sh(&format!("export PATH={}; {pods} && {others}", containerd.path));
        }
        containerd
    }

    /// Starts it again after it was killed or stopped, and waits until it serves.
    pub fn restart(&mut self) {
        assert!(self.daemon.is_none(), "containerd runs");
        let path = format!("PATH={}", self.path);
        let mut daemon = self.stage.daemon(&["env", &path, "containerd", "--config", CONFIG]);
        daemon.expect(&["containerd successfully booted"]);
        self.daemon = Some(daemon);
        self.cri().wait();
    }

    /// Kills it, as in a crash. Containers keep running.
    pub fn kill(&mut self) {
        self.daemon.take().expect("containerd runs").kill(&self.stage);
    }

    /// Kills it while a program that it called waits at a gate.
    pub fn kill_at(&mut self, gate: Gate, then: Then) {
        let daemon = self.daemon.take().expect("containerd runs");
        gate.pass(&self.stage, then, || daemon.kill(&self.stage));
    }

    /// Stops it. Containers keep running.
    pub fn stop(&mut self) {
        self.daemon.take().expect("containerd runs").stop(&self.stage);
    }

    /// A connection to its CRI.
    pub fn cri(&self) -> Cri {
        Cri::connect(&self.stage.file(SOCKET))
    }

    /// Replaces the network of its pods: writes a temporary file and renames it, so that containerd notices.
    pub fn set_network(&self, network: &str) {
        self.write(&format!("{NETWORK}.new"), network);
        self.sh(&format!("mv {NETWORK}.new {NETWORK}"));
    }
}

impl Deref for Containerd {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

/// The network in the guide.
pub fn network() -> String {
    guide::block(GUIDE, "json", "portmap")
}

//! containerd on a stage, set up as the guide says.

use std::ops::Deref;

use podwire_tests::project;

use crate::{Cri, Daemon, Stage};

/// Where containerd listens, on its stage.
pub const SOCKET: &str = "/run/containerd/containerd.sock";
/// The network of its pods, on its stage.
pub const NETWORK: &str = "/etc/cni/net.d/10-pods.conflist";

const CONFIG: &str = "/etc/containerd/config.toml";
/// A test that wants another runc puts it first.
const PATH: &str = "PATH=/opt/runc:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const GUIDE: &str = "docs/containerd.md";

/// containerd, the images that tests run, and the stage on which all of it is.
#[derive(Debug)]
pub struct Containerd {
    stage: Stage,
    daemon: Option<Daemon>,
}

impl Containerd {
    /// Starts containerd with the config and the network that the guide shows, and loads the images.
    pub fn start(stage: Stage) -> Containerd {
        Containerd::with_pause(stage, crate::image::PAUSE)
    }

    /// The same, with this image for what holds a pod's namespaces.
    pub fn with_pause(stage: Stage, image: &str) -> Containerd {
        let config = guide("toml");
        let pause = config.lines().find(|line| line.trim_start().starts_with("sandbox_image = "));
        let pause = pause.unwrap_or_else(|| panic!("{GUIDE} sets no sandbox_image"));
        stage.write(CONFIG, &config.replace(pause, &format!("  sandbox_image = \"{image}\"")));
        stage.write(NETWORK, &network());
        let mut containerd = Containerd { stage, daemon: None };
        containerd.restart();
        for image in containerd.images() {
            containerd.sh(&format!("ctr -n k8s.io images import {image} && ctr images import {image}"));
        }
        containerd
    }

    /// Starts it again after it was killed or stopped, and waits until it serves.
    pub fn restart(&mut self) {
        assert!(self.daemon.is_none(), "containerd runs");
        let mut daemon = self.stage.daemon(&["env", PATH, "containerd", "--config", CONFIG]);
        daemon.expect(&["containerd successfully booted"]);
        self.daemon = Some(daemon);
        self.cri().wait();
    }

    /// Ends it as a crash does. Containers go on.
    pub fn kill(&mut self) {
        self.daemon.take().expect("containerd runs").kill(&self.stage);
    }

    /// Asks it to end. Containers go on.
    pub fn stop(&mut self) {
        self.daemon.take().expect("containerd runs").stop(&self.stage);
    }

    /// A connection to its CRI.
    pub fn cri(&self) -> Cri {
        Cri::connect(&self.stage.file(SOCKET))
    }

    /// Gives its pods another network, written as containerd notices it: beside, and renamed.
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

/// The network that the guide shows.
pub fn network() -> String {
    guide("json")
}

/// The guide's first block in this language.
fn guide(language: &str) -> String {
    let text = std::fs::read_to_string(project(GUIDE)).expect("the guide");
    let block = text.split(&format!("```{language}\n")).nth(1).and_then(|rest| rest.split("```").next());
    block.unwrap_or_else(|| panic!("{GUIDE} has no block of {language}")).to_owned()
}

//! A machine for a container runtime.

use std::ops::Deref;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use podwire_tests::{ours, Node, Pod, GO};

use crate::Daemon;

/// The shell outside, and the first process inside.
const HOLD: &str = include_str!("hold.sh");
const FIRST: &str = include_str!("stage.sh");

/// The plugin directory that every runtime uses by default.
pub const BIN: &str = "/opt/cni/bin";

/// A set of plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugins {
    /// Podwire's, from `dist/cni`.
    Ours,
    /// Debian's, written in Go.
    Go,
}

/// A machine in namespaces: network, mounts, processes, cgroups.
#[derive(Debug)]
pub struct Stage {
    node: Node,
}

impl Stage {
    /// A new machine with these plugins in `/opt/cni/bin`.
    pub fn new(plugins: Plugins) -> Stage {
        let stage = Stage::held("");
        stage.install(plugins);
        stage
    }

    /// A machine without plugins, whose disk is this directory: files in its `/var`, `/etc` and `/opt` are still there
    /// on a later stage with the same directory, as after a reboot.
    pub fn with_disk(folder: &Path) -> Stage {
        Stage::held(&folder.display().to_string())
    }

    fn held(disk: &str) -> Stage {
        let mut holder = Command::new("sh");
        // Ctrl-C ends the test, but must not end the shell that cleans up after it.
        holder.args(["-c", HOLD, "stage", FIRST, disk]).process_group(0);
        Stage { node: Node::held_by(holder, &["--net", "--mount", "--pid", "--cgroup", "--ipc"]) }
    }

    /// Installs these plugins into `/opt/cni/bin`. Each is renamed over an existing one, as an installation does while
    /// pods run. Other plugins stay.
    pub fn install(&self, plugins: Plugins) {
        let from = match plugins {
            Plugins::Ours => ours(),
            Plugins::Go => GO.into(),
        };
        self.sh(&format!(
            "rm -rf {BIN}.new && cp -a {from}/. {BIN}.new && for one in {BIN}.new/*; do mv -f $one {BIN}/; done && rmdir {BIN}.new"
        ));
    }

    /// Starts a program that runs until it is stopped or the stage ends.
    pub fn daemon(&self, words: &[&str]) -> Daemon {
        Daemon::start(self, words)
    }

    /// The path of a file of the stage for programs outside of it, such as the test itself.
    pub fn file(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.pid()))
    }

    /// Gives a container's network namespace, whose path is known, a name for the functions of [`Node`] (ping, ask,
    /// listen). [`disown`](Self::disown) removes the name.
    pub fn adopt(&self, name: &str, netns: &str) -> Pod {
        self.sh(&format!("ln -s {netns} /run/netns/{name}"));
        Pod { name: name.into(), netns: netns.into() }
    }

    /// Removes the name of a container's namespace.
    pub fn disown(&self, pod: &Pod) {
        self.sh(&format!("rm /run/netns/{}", pod.name));
    }
}

impl Deref for Stage {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

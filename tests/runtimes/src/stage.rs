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

/// The folder of plugins that every runtime knows.
pub const BIN: &str = "/opt/cni/bin";

/// Whose plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugins {
    /// Those that `make build` left in `dist/cni`.
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
    /// A fresh machine with these plugins in `/opt/cni/bin`.
    pub fn new(plugins: Plugins) -> Stage {
        let stage = Stage::held("");
        stage.install(plugins);
        stage
    }

    /// A machine without plugins, whose disk is this folder: what it writes under `/var`, `/etc` and `/opt` is there
    /// when another one is made of the same folder, as after a reboot.
    pub fn with_disk(folder: &Path) -> Stage {
        Stage::held(&folder.display().to_string())
    }

    fn held(disk: &str) -> Stage {
        let mut holder = Command::new("sh");
        // A key pressed to end the test must not end the shell that cleans up after it.
        holder.args(["-c", HOLD, "stage", FIRST, disk]).process_group(0);
        Stage { node: Node::held_by(holder, &["--net", "--mount", "--pid", "--cgroup", "--ipc"]) }
    }

    /// Puts these plugins into `/opt/cni/bin`, each moved over the one that is there, as an installation does under
    /// running pods. Others stay.
    pub fn install(&self, plugins: Plugins) {
        let from = match plugins {
            Plugins::Ours => ours(),
            Plugins::Go => GO.into(),
        };
        self.sh(&format!(
            "rm -rf {BIN}.new && cp -a {from}/. {BIN}.new && for one in {BIN}.new/*; do mv -f $one {BIN}/; done && rmdir {BIN}.new"
        ));
    }

    /// Starts a program that runs until it is ended, or until the stage goes.
    pub fn daemon(&self, words: &[&str]) -> Daemon {
        Daemon::start(self, words)
    }

    /// A file of the stage as a path for programs outside of it, such as the test itself.
    pub fn file(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.pid()))
    }

    /// A container's network namespace, whose path is known, by a name under which [`Node`] can be asked to ping, ask
    /// and listen there. The name goes when it is [`disowned`](Self::disown); the namespace is the container's.
    pub fn adopt(&self, name: &str, netns: &str) -> Pod {
        self.sh(&format!("ln -s {netns} /run/netns/{name}"));
        Pod { name: name.into(), netns: netns.into() }
    }

    /// Forgets the name of a container's namespace.
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

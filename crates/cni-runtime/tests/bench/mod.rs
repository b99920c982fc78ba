//! A directory with plugins that are shell scripts: each logs its calls and answers as the test requests.

#![allow(dead_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use podwire_cni_runtime::{Identity, Runtime};
use podwire_cni_spec::NetworkList;
use serde_json::{json, Value};

const SCRIPT: &str = r#"#!/bin/sh
me=${0##*/}; log=${0%/*}/../log; at=$log/$me.$CNI_COMMAND
echo "$CNI_COMMAND $me $CNI_CONTAINERID" >> "$log/calls"
env > "$at.env"
cat > "$at.stdin"
if [ -f "$at.does" ]; then . "$at.does"; fi
if [ -f "$at.out" ]; then cat "$at.out"; fi
if [ -f "$at.exit" ]; then exit "$(cat "$at.exit")"; fi
"#;

pub struct Bench {
    pub root: PathBuf,
}

impl Bench {
    /// A test directory with these plugins, which succeed; ADD returns an empty result.
    pub fn new(kinds: &[&str]) -> Bench {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("podwire-runtime-{}-{number}", std::process::id()));
        for folder in ["bin", "log", "net.d"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let bench = Bench { root };
        for kind in kinds {
            let file = bench.plugin(kind);
            fs::write(&file, SCRIPT).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
            bench.says(kind, "ADD", "{}");
        }
        bench
    }

    pub fn plugin(&self, kind: &str) -> PathBuf {
        self.root.join("bin").join(kind)
    }

    fn log(&self, kind: &str, verb: &str, what: &str) -> PathBuf {
        self.root.join("log").join(format!("{kind}.{verb}.{what}"))
    }

    pub fn says(&self, kind: &str, verb: &str, text: &str) -> &Bench {
        fs::write(self.log(kind, verb, "out"), text).unwrap();
        self
    }

    pub fn fails(&self, kind: &str, verb: &str, code: u32, msg: &str) -> &Bench {
        fs::write(self.log(kind, verb, "exit"), "1").unwrap();
        self.says(kind, verb, &json!({ "code": code, "msg": msg }).to_string())
    }

    pub fn works_again(&self, kind: &str, verb: &str) -> &Bench {
        fs::remove_file(self.log(kind, verb, "exit")).unwrap();
        self.says(kind, verb, "{}")
    }

    pub fn does(&self, kind: &str, verb: &str, shell: &str) -> &Bench {
        fs::write(self.log(kind, verb, "does"), shell).unwrap();
        self
    }

    pub fn runtime(&self) -> Runtime<'static> {
        Runtime::new([self.root.join("bin")]).cache_folder(self.root.join("cache"))
    }

    /// Takes the log of calls: `VERB plugin container`.
    pub fn calls(&self) -> Vec<String> {
        let file = self.root.join("log/calls");
        let text = fs::read_to_string(&file).unwrap_or_default();
        let _ = fs::remove_file(file);
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    pub fn stdin(&self, kind: &str, verb: &str) -> Value {
        serde_json::from_slice(&fs::read(self.log(kind, verb, "stdin")).unwrap()).unwrap()
    }

    pub fn env(&self, kind: &str, verb: &str, name: &str) -> String {
        let text = fs::read_to_string(self.log(kind, verb, "env")).unwrap();
        let found = text.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
        found.unwrap_or_default().to_owned()
    }

    /// The record of an attachment.
    pub fn record(&self, name: &str) -> PathBuf {
        self.root.join("cache/results").join(name)
    }

    pub fn records(&self) -> Vec<String> {
        files(&self.root.join("cache/results"))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

pub fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().filter(|entry| entry.path().is_file());
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The network "net" with these plugins.
pub fn list(version: &str, kinds: &[&str]) -> NetworkList {
    let plugins: Vec<_> = kinds.iter().map(|kind| json!({ "type": kind })).collect();
    let list = json!({ "cniVersion": version, "name": "net", "plugins": plugins });
    NetworkList::parse(list.to_string().as_bytes()).unwrap()
}

pub fn pod() -> Identity {
    Identity::new("pod1", "eth0").unwrap().netns("/run/netns/nowhere")
}

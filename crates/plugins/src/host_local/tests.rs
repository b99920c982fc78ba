//! The folders of a node for a test, and short functions for what happens on it.

mod allocation;
mod config;
mod crashes;
mod maintenance;
mod reboot;
mod reuse;
mod scale;
mod sharing;

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use podwire_cni_plugin::{Command, Finding, Registry, Request, Result};
use podwire_cni_spec::{Args, Attachment, NetworkName, Version};
use serde_json::{json, Value};

use super::environment::Environment;
use super::store::SCANS;

/// How often `action` makes this thread scan a directory.
fn scans(action: impl FnOnce()) -> usize {
    let before = SCANS.get();
    action();
    SCANS.get() - before
}

/// A node with its own folders, which are removed at the end.
struct Node {
    home: PathBuf,
    config: Value,
    args: String,
    prev: Option<Attachment>,
    now: u64,
}

impl Node {
    /// A network `pods` with this `ipam` section.
    fn new(ipam: Value) -> Node {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name =
            format!("podwire-host-local-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let home = std::env::temp_dir().join(name);
        fs::create_dir_all(&home).unwrap();
        let config = json!({"cniVersion": "1.1.0", "name": "pods", "type": "bridge", "ipam": ipam});
        let mut node = Node { home, config, args: String::new(), prev: None, now: 1_760_000_000 };
        node.config["ipam"]["dataDir"] = json!(node.home.join("networks"));
        node
    }

    fn subnet(subnet: &str) -> Node {
        Node::new(json!({"type": "host-local", "subnet": subnet}))
    }

    fn folder(&self) -> PathBuf {
        self.home.join("networks/pods")
    }

    fn index_root(&self) -> PathBuf {
        self.home.join("run/host-local")
    }

    fn env(&self) -> Environment {
        Environment { index_root: self.index_root(), proc: self.home.join("proc"), now: self.now }
    }

    fn request(&self, command: Command, container: &str, ifname: &str) -> Request<'static> {
        let version = self.config["cniVersion"].as_str().unwrap();
        Request {
            command,
            container: container.into(),
            ifname: ifname.into(),
            netns: None,
            args: Args::parse(&self.args).unwrap(),
            path: Vec::new(),
            network: NetworkName::parse("pods").unwrap(),
            version: Version::parse(version).unwrap(),
            config: self.config.clone().into(),
            prev: self.prev.clone(),
            registry: Registry::none(),
            busy: Vec::new(),
            signed_only: false,
            callers: Vec::new(),
            deadline: None,
            trace: Vec::new(),
        }
    }

    fn try_add(&self, container: &str) -> Result<Attachment> {
        super::add(&self.request(Command::Add, container, "eth0"), &self.env())
    }

    /// ADD; the addresses with their prefix lengths.
    fn add(&self, container: &str) -> Vec<String> {
        self.try_add(container).unwrap().ips.iter().map(|ip| ip.address.to_string()).collect()
    }

    /// An ADD that fails: the code and the text.
    fn refused(&self, container: &str) -> (u32, String) {
        let error = self.try_add(container).unwrap_err().to_cni();
        (error.code, error.msg)
    }

    fn del(&self, container: &str) {
        super::del(&self.request(Command::Del, container, "eth0"), &self.env()).unwrap();
    }

    fn check(&self, container: &str) -> Result<()> {
        Finding::report(super::inspect(&self.request(Command::Check, container, "eth0"), &self.env())?)
    }

    /// GC that keeps `valid`.
    fn gc(&mut self, valid: &[(&str, &str)]) {
        let valid = valid.iter().map(|(id, ifname)| json!({"containerID": id, "ifname": ifname}));
        self.config["cni.dev/valid-attachments"] = valid.collect();
        super::gc(&self.request(Command::Gc, "", ""), &self.env()).unwrap();
    }

    fn status(&self) -> Result<(), (u32, String)> {
        super::status(&self.request(Command::Status, "", ""), &self.env()).map_err(|error| {
            let error = error.to_cni();
            (error.code, error.msg)
        })
    }

    /// A file in the network's folder, as another plugin would write it.
    fn write(&self, name: &str, content: &str) {
        fs::create_dir_all(self.folder()).unwrap();
        fs::write(self.folder().join(name), content).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder().join(name)).unwrap()
    }

    /// The addresses that have files, in order.
    fn taken(&self) -> Vec<String> {
        let mut ips: Vec<IpAddr> =
            super::store::addresses_with_file(&self.folder()).unwrap().into_iter().collect();
        ips.sort_unstable();
        ips.iter().map(IpAddr::to_string).collect()
    }

    /// How many attachments have a file in the index.
    fn owners(&self) -> usize {
        let folder = fs::read_dir(self.index_root()).unwrap().next().unwrap().unwrap();
        let files = fs::read_dir(folder.path()).unwrap();
        files.filter(|file| file.as_ref().unwrap().file_name().len() == 32).count()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.home);
    }
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o7777
}

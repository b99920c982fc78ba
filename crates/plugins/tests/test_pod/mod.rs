//! A node and a pod for one test: two fresh network namespaces.

#![allow(dead_code)] // Each test program uses its part.

use std::path::{Path, PathBuf};
use std::process::{Command as Program, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use podwire_cni_plugin::{dispatch, Command, Plugin, Registry, Request, Result, Source};
use podwire_cni_spec::Attachment;
use podwire_kernel::veth::{Pair, Veth};
use podwire_kernel::{Host, Netns, Owner};
use serde_json::{json, Value};

/// The pod of a test; the test's thread is on the node.
pub struct Pod {
    /// Its namespace.
    pub netns: PathBuf,
    /// Its container's id, which no other test has.
    pub container: String,
}

/// Runs `test` on a new node with one pod.
pub fn with_pod(test: impl FnOnce(&Pod) + Send) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let container = format!("podwire-{}-{number}", std::process::id());
    let netns = Path::new("/run/netns").join(&container);
    std::thread::scope(|scope| {
        let work = || {
            podwire_netlink::sys::new_network_namespace().unwrap();
            Netns::create(&netns).unwrap();
            let pod = Pod { netns: netns.clone(), container };
            test(&pod);
        };
        let done = scope.spawn(work).join();
        Netns::remove(&netns).unwrap();
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    });
}

impl Pod {
    /// Deletes the namespace, as after the loss of a container.
    pub fn vanish(&self) {
        Netns::remove(&self.netns).unwrap();
    }

    /// A network name that no other test uses. Tests share the machine's ledger, and GC of a network would remove
    /// attachments of other tests.
    pub fn own_network(&self) -> String {
        format!("net-{}", self.container)
    }

    /// The environment that a runtime passes.
    pub fn source(&self, ifname: &str) -> Source {
        Source {
            container: self.container.clone(),
            ifname: ifname.into(),
            netns: self.netns.display().to_string(),
            ..Source::default()
        }
    }

    /// Calls a plugin as a runtime does, and returns the printed result.
    pub fn call(&self, plugin: &dyn Plugin, command: Command, ifname: &str, config: &Value) -> Result<Value> {
        call(plugin, command, &self.source(ifname), config)
    }

    /// Runs a program inside the pod.
    pub fn run(&self, line: &str) -> String {
        Netns::open(&self.netns).unwrap().run(|| run(line)).unwrap()
    }

    /// Runs a program that prints JSON inside the pod.
    pub fn json(&self, line: &str) -> Value {
        parse(&self.run(line))
    }

    /// Calls `work` inside the pod.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        Netns::open(&self.netns).unwrap().run(work).unwrap()
    }

    /// Creates a veth pair into the pod, up at both ends, and the result of a plugin that created it.
    pub fn connect(&self, network: &str, ifname: &str) -> (Pair, Value) {
        let owner = Owner::new(network, &self.container, ifname);
        let veth = Veth { name: ifname, owner: &owner, mtu: 1500, mac: None, port: None, end: None };
        let pair = veth.create(&mut Host::here().unwrap(), &Netns::open(&self.netns).unwrap()).unwrap();
        self.run(&format!("ip link set {ifname} up"));
        let result = json!({
            "cniVersion": "1.0.0",
            "interfaces": [
                {"name": pair.host, "mac": pair.host_mac.to_string()},
                {"name": ifname, "mac": pair.pod_mac.to_string(), "sandbox": self.netns.display().to_string()},
            ],
        });
        (pair, result)
    }
}

/// Calls a plugin for `source`.
pub fn call(plugin: &dyn Plugin, command: Command, source: &Source, config: &Value) -> Result<Value> {
    let req = Request::new(command, source, config.clone(), Registry::none())?;
    Ok(dispatch::call(plugin, &req, false)?.unwrap_or(Value::Null))
}

/// GC by `plugin` until `done`. An attachment that is being made is left to the next GC, and so is one whose lock is
/// held, until its exec, by a program that another test starts right now.
pub fn collect_until(plugin: &dyn Plugin, config: &Value, done: impl Fn() -> bool) {
    let collected = (0..1000).any(|_| {
        call(plugin, Command::Gc, &Source::default(), config).unwrap();
        done()
    });
    assert!(collected, "something stays although no attachment is valid");
}

/// A printed result, read again.
pub fn attachment(result: &Value) -> Attachment {
    Attachment::from_json(result, podwire_cni_spec::Version::CURRENT).unwrap()
}

/// Runs a program on the node.
pub fn run(line: &str) -> String {
    let mut words = line.split(' ');
    let output = Program::new(words.next().unwrap()).args(words).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{line}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Runs a program that prints JSON on the node.
pub fn json(line: &str) -> Value {
    parse(&run(line))
}

fn parse(text: &str) -> Value {
    if text.trim().is_empty() {
        return json!([]);
    }
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The result of the Go plugin, if it is installed.
pub fn go(kind: &str, command: &str, source: &Source, config: &Value) -> Option<Value> {
    let file = Path::new("/usr/lib/cni").join(kind);
    if !file.exists() {
        eprintln!("left out: {} is not installed", file.display());
        return None;
    }
    let mut child = Program::new(file)
        .env("CNI_COMMAND", command)
        .env("CNI_CONTAINERID", &source.container)
        .env("CNI_IFNAME", &source.ifname)
        .env("CNI_NETNS", &source.netns)
        .env("CNI_PATH", "/usr/lib/cni")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), config.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "Go's {kind} {command}: {text}");
    Some(serde_json::from_str(&text).unwrap_or(Value::Null))
}

//! Go peers without a Debian package: built once from the Go module proxy into a cache directory. Scripts build
//! flanneld and Calico's plugins, which have many modules.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// A Go plugin of another project.
struct Peer {
    name: &'static str,
    module: &'static str,
    version: &'static str,
    package: &'static str,
}

/// From the last release of the reference plugins with flannel. Its files have the format of current releases.
const FLANNEL: Peer = Peer {
    name: "flannel",
    module: "github.com/containernetworking/plugins",
    version: "v0.9.1",
    package: "plugins/meta/flannel",
};

const NOOP: Peer = Peer {
    name: "noop",
    module: "github.com/containernetworking/cni",
    version: "v1.3.1",
    package: "plugins/test/noop",
};

/// Whether this run builds programs from Go modules. That takes minutes, and these peers sometimes fail for other
/// reasons, so only `make test-all` does it.
fn may_build(what: &str) -> bool {
    let may = crate::is_whole();
    if !may {
        // Not println: the test runner captures it.
        drop(writeln!(std::io::stderr(), "left out: {what} (built from Go modules: make test-all)"));
    }
    may
}

/// The folder with the Go plugin `flannel` in it. `None`, with a message, where there is no Go or no network.
pub fn go_flannel() -> Option<&'static str> {
    static BUILT: OnceLock<Option<String>> = OnceLock::new();
    BUILT.get_or_init(|| FLANNEL.folder()).as_deref()
}

/// The folder with the reference library's `noop` in it. `None`, with a message, where there is no Go or no network.
pub fn go_noop() -> Option<&'static str> {
    static BUILT: OnceLock<Option<String>> = OnceLock::new();
    BUILT.get_or_init(|| NOOP.folder()).as_deref()
}

/// flanneld. `None`, with a message, where it cannot be built.
pub fn flanneld() -> Option<&'static str> {
    static BUILT: OnceLock<Option<String>> = OnceLock::new();
    let build = || by_script("flannel-binaries", "flanneld").map(|folder| format!("{folder}/flanneld"));
    BUILT.get_or_init(build).as_deref()
}

/// The folder with Calico's `calico` and `calico-ipam`, and the definitions of its custom resources in `definitions`.
/// None, and said so, where they cannot be built.
pub fn calicos() -> Option<&'static str> {
    static BUILT: OnceLock<Option<String>> = OnceLock::new();
    BUILT.get_or_init(|| by_script("calico-binaries", "Calico's plugins")).as_deref()
}

/// The folder that a script of the project prints. `None`, with a message, where it cannot build what belongs there.
fn by_script(name: &str, what: &str) -> Option<String> {
    let run = |words: &[&str]| {
        let mut script = Command::new(crate::project(&format!("scripts/{name}")));
        // The script prints its progress; it can take minutes.
        let output = script.args(words).stderr(Stdio::inherit()).output().expect("bash");
        let printed = String::from_utf8_lossy(&output.stdout).trim().to_string();
        if output.status.success() {
            Ok(printed)
        } else {
            Err(printed)
        }
    };
    if !may_build(what) {
        return None;
    }
    let say = |why| drop(writeln!(std::io::stderr(), "left out: everything with {what} ({why})"));
    run(&["--can-run"]).and_then(|_| run(&[])).map_err(say).ok()
}

/// The folder with kube-apiserver and the etcd that it wants. `None`, with a message, where they are not built: that
/// takes many minutes, and the Kubernetes tests do it.
pub fn kubernetes_programs() -> Option<&'static str> {
    static FOUND: OnceLock<Option<String>> = OnceLock::new();
    let find = || {
        if !crate::is_whole() {
            return Err("make test-all".to_string());
        }
        let folders = std::fs::read_dir(cache()?).map_err(|error| error.to_string())?;
        let folders = folders.flatten().map(|entry| entry.path());
        let of_kubernetes = |folder: &PathBuf| {
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("kubernetes-")
                && ["etcd", "kube-apiserver"].iter().all(|one| folder.join(one).exists())
        };
        let found = folders.filter(of_kubernetes).max().map(|folder| folder.display().to_string());
        found.ok_or("no kube-apiserver in the cache folder".to_string())
    };
    let say = |why| drop(writeln!(std::io::stderr(), "left out: flanneld with Kubernetes ({why})"));
    FOUND.get_or_init(|| find().map_err(say).ok()).as_deref()
}

/// The directory of built programs.
fn cache() -> Result<PathBuf, String> {
    let cache = match (std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")) {
        (Some(cache), _) => PathBuf::from(cache),
        (None, Some(home)) => PathBuf::from(home).join(".cache"),
        (None, None) => return Err("neither HOME nor XDG_CACHE_HOME is set".into()),
    };
    Ok(cache.join("podwire"))
}

impl Peer {
    fn folder(&self) -> Option<String> {
        if !may_build(&format!("the Go plugin {}", self.name)) {
            return None;
        }
        let say = |why| {
            // Not println: the test runner captures it.
            let (name, version) = (self.name, self.version);
            drop(writeln!(std::io::stderr(), "left out: the Go plugin {name} {version} ({why})"));
        };
        self.build().map_err(say).ok()
    }

    fn build(&self) -> Result<String, String> {
        let Peer { name, module: from, version, package } = self;
        let folder = cache()?.join(format!("go-{name}-{version}"));
        let (path, built) = (folder.display().to_string(), folder.join(name));
        if built.exists() {
            return Ok(path);
        }
        // A separate module for each attempt, so that two tests can build at the same time.
        let module = folder.join(format!("module-{}", std::process::id()));
        let make = || -> Result<(), String> {
            std::fs::create_dir_all(&module).map_err(|error| error.to_string())?;
            std::fs::write(module.join("go.mod"), "module peer\n\ngo 1.21\n")
                .map_err(|error| error.to_string())?;
            let go = |words: &[&str]| {
                let output = Command::new("go").args(words).current_dir(&module).output();
                let output = output.map_err(|error| format!("go: {error}"))?;
                let last =
                    String::from_utf8_lossy(&output.stderr).trim().lines().last().unwrap_or("").to_string();
                output.status.success().then_some(()).ok_or(format!("go {}: {last}", words[0]))
            };
            go(&["get", &format!("{from}/{package}@{version}")])?;
            go(&["build", "-o", "built", &format!("{from}/{package}")])?;
            std::fs::rename(module.join("built"), &built).map_err(|error| error.to_string())
        };
        let made = make();
        let _ = std::fs::remove_dir_all(&module);
        made.map(|()| path)
    }
}

//! The conflist in the runtime's directory, and the readiness file that STATUS of its plugins reads.
//!
//! A runtime treats its node as ready as soon as a conflist exists. So the agent writes it after the routes are set up,
//! as a temporary file that it renames, which every runtime notices. While the node cannot carry traffic, the agent
//! removes the conflist; or it keeps the conflist and the plugins' STATUS fails. A config of another program that sorts
//! before ours is reported: the runtime would use that one.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use podwire_agent_ipc::readiness;
use podwire_fs::FileError;
use podwire_subnets::SubnetEnv;
use serde_json::{json, Value};

use crate::Result;

/// The first plugin of the conflist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    /// flannel's plugin, which reads `subnet.env` and delegates to bridge, as in flannel's own conflist.
    Flannel,
    /// bridge.
    Bridge,
    /// ptp: a routed veth pair for each pod.
    Ptp,
}

/// What the runtime sees while the node cannot carry traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// No conflist. Every runtime supports that, but it cannot detach pods without a conflist.
    Withdraw,
    /// STATUS fails with code 50 and the reason. The runtime must call STATUS, and the conflist must have version
    /// 1.1.0.
    Status,
}

/// The conflist.
#[derive(Clone, Debug)]
pub struct Conflist {
    /// Its path.
    pub path: PathBuf,
    /// The network's name.
    pub name: String,
    /// The first plugin.
    pub chain: Chain,
    /// The CNI version: containerd 1.6 and 1.7 support 1.0.0.
    pub version: String,
    /// If pods wait for their policies: the source prefixes that they may request.
    pub policy: Option<Vec<IpNet>>,
    /// What the runtime sees while the node cannot carry traffic.
    pub not_ready: NotReady,
}

impl Conflist {
    /// The file's content.
    pub(crate) fn text(&self, env: &SubnetEnv, readiness: &Path) -> String {
        let mut first = match self.chain {
            Chain::Flannel => json!({
                "type": "flannel",
                "delegate": { "hairpinMode": true, "isDefaultGateway": true },
            }),
            Chain::Bridge => json!({
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": true,
                "isDefaultGateway": true,
                "hairpinMode": true,
                "ipMasq": !env.masquerades,
                "mtu": env.mtu,
                "ipam": ipam(env, &[]),
            }),
            Chain::Ptp => {
                let v4 = env.v4.map(|_| "0.0.0.0/0");
                let v6 = env.v6.map(|_| "::/0");
                let routes: Vec<&str> = v4.into_iter().chain(v6).collect();
                json!({ "type": "ptp", "ipMasq": !env.masquerades, "mtu": env.mtu, "ipam": ipam(env, &routes) })
            }
        };
        if let Some(prefixes) = &self.policy {
            // The plugin that creates the interface waits for policies; flannel's plugin passes its delegate's config
            // on.
            let creator = if self.chain == Chain::Flannel { &mut first["delegate"] } else { &mut first };
            creator["policy"] = json!({ "type": "k8s" });
            if !prefixes.is_empty() {
                let texts: Vec<String> = prefixes.iter().map(ToString::to_string).collect();
                creator["policy"]["allowedSourcePrefixes"] = texts.into();
            }
        }
        if self.not_ready == NotReady::Status {
            first[readiness::KEY] = readiness.display().to_string().into();
        }
        let ports = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
        let list = json!({ "cniVersion": self.version, "name": self.name, "plugins": [first, ports] });
        format!("{}\n", podwire_cni_spec::json::pretty(&list))
    }

    /// Writes the file if its content differs. Returns whether it was written.
    pub(crate) fn write(&self, env: &SubnetEnv, readiness: &Path) -> Result<bool> {
        let text = self.text(env, readiness);
        if fs::read_to_string(&self.path).is_ok_and(|there| there == text) {
            return Ok(false);
        }
        replace(&self.path, &text)?;
        Ok(true)
    }

    /// Removes the file, unless STATUS reports the reason. Returns whether it was removed.
    pub(crate) fn withdraw(&self) -> Result<bool> {
        if self.not_ready == NotReady::Status {
            return Ok(false);
        }
        match fs::remove_file(&self.path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(FileError::at("remove", &self.path)(error).into()),
        }
    }

    /// Configs that the runtime uses instead of ours, because their names sort before it.
    pub(crate) fn competing_configs(&self) -> Vec<PathBuf> {
        let (Some(dir), Some(own)) = (self.path.parent(), self.path.file_name()) else {
            return Vec::new();
        };
        let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_config = |path: &PathBuf| {
            path.extension().is_some_and(|end| ["conf", "conflist", "json"].iter().any(|one| end == *one))
        };
        let mut found: Vec<PathBuf> =
            entries.filter(is_config).filter(|path| path.file_name() < Some(own)).collect();
        found.sort();
        found
    }
}

/// Writes the readiness file: ready, or why the node is not ready.
pub(crate) fn write_readiness(file: &Path, why: Option<&str>) -> Result<()> {
    let text = format!("{}\n", why.unwrap_or(readiness::READY));
    match fs::read_to_string(file) {
        Ok(there) if there == text => Ok(()),
        _ => replace(file, &text),
    }
}

/// Writes why an agent that starts is not ready yet. If the previous agent was ready, its routes still work and the
/// file stays.
pub(crate) fn write_readiness_at_start(file: &Path, why: &str) -> Result<()> {
    match fs::read_to_string(file) {
        Ok(there) if there.trim() == readiness::READY => Ok(()),
        _ => write_readiness(file, Some(why)),
    }
}

/// Replaces a file and flushes it to disk: a runtime that starts after a power loss must not find an empty conflist.
fn replace(path: &Path, text: &str) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(dir).map_err(FileError::at("create", dir))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // The temporary name must not end like a config's: a runtime would read an incomplete file.
    let new = dir.join(format!(".{name}.new"));
    let write = || {
        let mut file = fs::File::create(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    Ok(write().map_err(FileError::at("write", path))?)
}

fn ipam(env: &SubnetEnv, routes: &[&str]) -> Value {
    let ranges: Vec<IpNet> = env
        .v4
        .map(|(_, own)| IpNet::V4(own))
        .into_iter()
        .chain(env.v6.map(|(_, own)| IpNet::V6(own)))
        .collect();
    let ranges: Vec<Value> = ranges.iter().map(|range| json!([{ "subnet": range.to_string() }])).collect();
    let mut ipam = json!({ "type": "host-local", "ranges": ranges });
    if !routes.is_empty() {
        ipam["routes"] = routes.iter().map(|dst| json!({ "dst": dst })).collect();
    }
    ipam
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env() -> SubnetEnv {
        SubnetEnv {
            v4: Some(("10.244.0.0/16".parse().unwrap(), "10.244.7.0/24".parse().unwrap())),
            v6: Some(("fd00:10::/48".parse().unwrap(), "fd00:10:0:7::/64".parse().unwrap())),
            mtu: 1450,
            masquerades: true,
        }
    }

    fn conflist(chain: Chain, dir: &Path) -> Conflist {
        Conflist {
            path: dir.join("10-podwire.conflist"),
            name: "cbr0".into(),
            chain,
            version: "1.1.0".into(),
            not_ready: NotReady::Withdraw,
            policy: None,
        }
    }

    #[test]
    fn every_chain_has_the_pod_cidrs_and_the_mtu_of_the_node() {
        for (chain, kind) in [(Chain::Flannel, "flannel"), (Chain::Bridge, "bridge"), (Chain::Ptp, "ptp")] {
            let list: Value =
                serde_json::from_str(&conflist(chain, Path::new("/")).text(&env(), Path::new("/r"))).unwrap();
            assert_eq!(list["plugins"][0]["type"], kind);
            assert_eq!(list["plugins"][1]["type"], "portmap");
            if chain != Chain::Flannel {
                assert_eq!(list["plugins"][0]["mtu"], 1450);
                assert_eq!(list["plugins"][0]["ipMasq"], false);
                assert_eq!(list["plugins"][0]["ipam"]["ranges"][1][0]["subnet"], "fd00:10:0:7::/64");
            }
        }
    }

    #[test]
    fn the_plugin_that_creates_the_interface_has_the_policy_config() {
        let prefixes: Vec<IpNet> = vec!["10.8.0.0/16".parse().unwrap(), "fd08::/16".parse().unwrap()];
        for (chain, pointer) in [
            (Chain::Flannel, "/plugins/0/delegate/policy"),
            (Chain::Bridge, "/plugins/0/policy"),
            (Chain::Ptp, "/plugins/0/policy"),
        ] {
            let policy = |prefixes: &[IpNet]| {
                let list = Conflist { policy: Some(prefixes.to_vec()), ..conflist(chain, Path::new("/")) };
                let text: Value = serde_json::from_str(&list.text(&env(), Path::new("/r"))).unwrap();
                text.pointer(pointer).cloned().unwrap()
            };
            assert_eq!(policy(&[]), json!({ "type": "k8s" }));
            let allowed = json!({ "type": "k8s", "allowedSourcePrefixes": ["10.8.0.0/16", "fd08::/16"] });
            assert_eq!(policy(&prefixes), allowed);
        }
    }

    #[test]
    fn it_is_written_once_removed_and_competing_configs_are_found() {
        let dir = std::env::temp_dir().join(format!("podwire-conflist-{}", std::process::id()));
        let list = conflist(Chain::Ptp, &dir);
        assert!(list.write(&env(), Path::new("/r")).unwrap());
        assert!(!list.write(&env(), Path::new("/r")).unwrap(), "the same again is not written");
        assert!(list.competing_configs().is_empty());
        for name in ["05-mine.conf", "99-late.conflist", "00-notes.txt", ".10-podwire.conflist.new"] {
            fs::write(dir.join(name), "{}").unwrap();
        }
        assert_eq!(list.competing_configs(), [dir.join("05-mine.conf")]);
        assert!(list.withdraw().unwrap());
        assert!(!list.withdraw().unwrap());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn with_status_the_conflist_stays_and_names_the_readiness_file() {
        let dir = std::env::temp_dir().join(format!("podwire-staying-{}", std::process::id()));
        let list = Conflist { not_ready: NotReady::Status, ..conflist(Chain::Bridge, &dir) };
        let file = dir.join("readiness");
        list.write(&env(), &file).unwrap();
        let text: Value = serde_json::from_str(&fs::read_to_string(&list.path).unwrap()).unwrap();
        assert_eq!(text["plugins"][0]["readiness"], file.to_str().unwrap());
        assert!(!list.withdraw().unwrap() && list.path.exists());
        write_readiness(&file, Some("no default route")).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "no default route\n");
        write_readiness(&file, None).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "ready\n");
        fs::remove_dir_all(dir).unwrap();
    }
}

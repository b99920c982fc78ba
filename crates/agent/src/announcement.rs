//! Saying that pods may come: flannel's `subnet.env`, and last a list of plugins in the runtime's folder.
//!
//! A runtime calls its node ready as soon as a list of plugins is there. So it is written when the roads are open, in one step
//! and in a way that every runtime notices (a new file in the same folder, renamed). While the node cannot carry traffic the
//! list is taken away; or it stays, and STATUS of its plugins says so, by a file that they read. A list that somebody else put
//! in front of ours is told: the runtime would take that one.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use podwire_agent_ipc::readiness;
use podwire_subnets::SubnetEnv;
use serde_json::{json, Value};

use crate::{Error, Result};

/// How pods are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    /// flannel's plugin, which reads `subnet.env` and delegates to bridge, as flannel's own list has it.
    Flannel,
    /// A bridge.
    Bridge,
    /// A cable for each pod, routed.
    Ptp,
}

/// What a runtime sees while the node cannot carry traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// No list of plugins. Every runtime understands that; but it cannot detach pods by a list that it has not read.
    Withdraw,
    /// STATUS fails with code 50 and the reason. For runtimes that ask, and lists of version 1.1.0.
    Status,
}

/// The list of plugins.
#[derive(Clone, Debug)]
pub struct Conflist {
    /// The file.
    pub path: PathBuf,
    /// The network's name.
    pub name: String,
    /// How pods are attached.
    pub chain: Chain,
    /// The version of the specification: containerd 1.6 and 1.7 know 1.0.0.
    pub version: String,
    /// Whether pods wait for their policies; then also the networks of which they may claim addresses.
    pub policy: Option<Vec<IpNet>>,
    /// What happens to it while the node cannot carry traffic.
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
        if let Some(claimable) = &self.policy {
            // The plugin that makes the interface waits; flannel's hands its delegate's config on.
            let of_maker = if self.chain == Chain::Flannel { &mut first["delegate"] } else { &mut first };
            of_maker["policy"] = json!({ "type": "k8s" });
            if !claimable.is_empty() {
                let texts: Vec<String> = claimable.iter().map(ToString::to_string).collect();
                of_maker["policy"]["allowedSourcePrefixes"] = texts.into();
            }
        }
        if self.not_ready == NotReady::Status {
            first[readiness::KEY] = readiness.display().to_string().into();
        }
        let ports = json!({ "type": "portmap", "capabilities": { "portMappings": true } });
        let list = json!({ "cniVersion": self.version, "name": self.name, "plugins": [first, ports] });
        format!("{}\n", podwire_cni_spec::json::pretty(&list))
    }

    /// Writes it, if it is not there as it should be.
    pub(crate) fn write(&self, env: &SubnetEnv, readiness: &Path) -> Result<bool> {
        let text = self.text(env, readiness);
        if fs::read_to_string(&self.path).is_ok_and(|there| there == text) {
            return Ok(false);
        }
        replace(&self.path, &text)?;
        Ok(true)
    }

    /// The node cannot carry traffic.
    pub(crate) fn withdraw(&self) -> Result<bool> {
        if self.not_ready == NotReady::Status {
            return Ok(false);
        }
        match fs::remove_file(&self.path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::file("remove", &self.path)(error)),
        }
    }

    /// Files that a runtime would take instead of ours: it sorts by name.
    pub(crate) fn rivals(&self) -> Vec<PathBuf> {
        let (Some(folder), Some(own)) = (self.path.parent(), self.path.file_name()) else {
            return Vec::new();
        };
        let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_list = |path: &PathBuf| {
            path.extension().is_some_and(|end| ["conf", "conflist", "json"].iter().any(|one| end == *one))
        };
        let mut found: Vec<PathBuf> =
            entries.filter(is_list).filter(|path| path.file_name() < Some(own)).collect();
        found.sort();
        found
    }
}

/// Tells the plugins' STATUS whether pods may come: `None`, or why not.
pub(crate) fn tell_plugins(file: &Path, why: Option<&str>) -> Result<()> {
    let text = format!("{}\n", why.unwrap_or(readiness::READY));
    match fs::read_to_string(file) {
        Ok(there) if there == text => Ok(()),
        _ => replace(file, &text),
    }
}

/// The same for an agent that has not come far enough to know: what the one before it said of open roads stays true.
pub(crate) fn tell_plugins_at_start(file: &Path, why: &str) -> Result<()> {
    match fs::read_to_string(file) {
        Ok(there) if there.trim() == readiness::READY => Ok(()),
        _ => tell_plugins(file, Some(why)),
    }
}

/// Writes a file in one step, and surely.
fn replace(path: &Path, text: &str) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder).map_err(Error::file("make folder", folder))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Its name must not look like a list's: runtimes would read the half of it.
    let new = folder.join(format!(".{name}.new"));
    let write = || {
        let mut file = fs::File::create(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().map_err(Error::file("write", path))
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

    fn conflist(chain: Chain, folder: &Path) -> Conflist {
        Conflist {
            path: folder.join("10-podwire.conflist"),
            name: "cbr0".into(),
            chain,
            version: "1.1.0".into(),
            not_ready: NotReady::Withdraw,
            policy: None,
        }
    }

    #[test]
    fn every_chain_has_the_ranges_and_the_mtu_of_the_node() {
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
    fn the_plugin_that_makes_the_interface_waits_for_policies_and_knows_what_pods_may_claim() {
        let claimable: Vec<IpNet> = vec!["10.8.0.0/16".parse().unwrap(), "fd08::/16".parse().unwrap()];
        for (chain, pointer) in [
            (Chain::Flannel, "/plugins/0/delegate/policy"),
            (Chain::Bridge, "/plugins/0/policy"),
            (Chain::Ptp, "/plugins/0/policy"),
        ] {
            let policy = |claimable: &[IpNet]| {
                let list = Conflist { policy: Some(claimable.to_vec()), ..conflist(chain, Path::new("/")) };
                let text: Value = serde_json::from_str(&list.text(&env(), Path::new("/r"))).unwrap();
                text.pointer(pointer).cloned().unwrap()
            };
            assert_eq!(policy(&[]), json!({ "type": "k8s" }));
            let allowed = json!({ "type": "k8s", "allowedSourcePrefixes": ["10.8.0.0/16", "fd08::/16"] });
            assert_eq!(policy(&claimable), allowed);
        }
    }

    #[test]
    fn it_is_written_once_taken_away_and_its_rivals_are_known() {
        let folder = std::env::temp_dir().join(format!("podwire-conflist-{}", std::process::id()));
        let list = conflist(Chain::Ptp, &folder);
        assert!(list.write(&env(), Path::new("/r")).unwrap());
        assert!(!list.write(&env(), Path::new("/r")).unwrap(), "the same again is not written");
        assert!(list.rivals().is_empty());
        for name in ["05-mine.conf", "99-late.conflist", "00-notes.txt", ".10-podwire.conflist.new"] {
            fs::write(folder.join(name), "{}").unwrap();
        }
        assert_eq!(list.rivals(), [folder.join("05-mine.conf")]);
        assert!(list.withdraw().unwrap());
        assert!(!list.withdraw().unwrap());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_list_that_stays_names_the_file_that_says_why_pods_may_not_come() {
        let folder = std::env::temp_dir().join(format!("podwire-staying-{}", std::process::id()));
        let list = Conflist { not_ready: NotReady::Status, ..conflist(Chain::Bridge, &folder) };
        let file = folder.join("readiness");
        list.write(&env(), &file).unwrap();
        let text: Value = serde_json::from_str(&fs::read_to_string(&list.path).unwrap()).unwrap();
        assert_eq!(text["plugins"][0]["readiness"], file.to_str().unwrap());
        assert!(!list.withdraw().unwrap() && list.path.exists());
        tell_plugins(&file, Some("no default route")).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "no default route\n");
        tell_plugins(&file, None).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "ready\n");
        fs::remove_dir_all(folder).unwrap();
    }
}

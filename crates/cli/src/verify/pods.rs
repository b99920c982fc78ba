//! The pods that should be on this node: every attachment that a runtime has recorded and not deleted.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use podwire_cni_runtime::{Cache, Record};
use podwire_kernel::Netns;
use podwire_verify::{Endpoint, Kind, Missing};

use crate::cni::records;

/// The recorded pods.
#[derive(Default)]
pub(super) struct Pods {
    pub endpoints: Vec<Endpoint>,
    /// Those that cannot be probed.
    pub missing: Vec<Missing>,
}

/// A pod that may have several records.
struct RecordedPod {
    name: String,
    netns: PathBuf,
    /// The addresses that its ADDs returned.
    addresses: Vec<IpAddr>,
}

impl Pods {
    /// Reads the records of these networks, or of all. A pod in several networks is listed once.
    pub fn find(cache: &Path, networks: &[String]) -> Pods {
        let listing = Cache::new(cache).list();
        let mut pods = Pods::default();
        for problem in listing.problems {
            let name = problem.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            pods.lacks(&name, format!("its record cannot be read: {}", problem.error));
        }
        let mut found: BTreeMap<String, RecordedPod> = BTreeMap::new();
        for record in listing.records {
            if !networks.is_empty() && !networks.contains(&record.network) {
                continue;
            }
            match namespace(&record) {
                Ok((identity, netns)) => {
                    let name = name(&record);
                    let pod = RecordedPod { name, netns, addresses: Vec::new() };
                    found.entry(identity).or_insert(pod).addresses.extend(addresses(&record));
                }
                Err(reason) => pods.lacks(&name(&record), reason),
            }
        }
        for RecordedPod { name, netns, addresses } in found.into_values() {
            match Endpoint::pod(&name, netns, &addresses) {
                Ok(endpoint) => pods.endpoints.push(endpoint),
                Err(error) => pods.lacks(&name, error.to_string()),
            }
        }
        pods.endpoints.sort_by(|one, other| one.name.cmp(&other.name));
        pods
    }

    /// Adds a pod that cannot be probed. A pod in several networks is listed once.
    fn lacks(&mut self, name: &str, reason: String) {
        let missing = Missing::new(name, Kind::Pod, reason);
        if !self.missing.contains(&missing) {
            self.missing.push(missing);
        }
    }
}

/// The identity and the path of a pod's namespace, or why it cannot be probed.
fn namespace(record: &Record) -> Result<(String, PathBuf), String> {
    if record.result.is_none() {
        return Err(format!("its ADD to network {} did not finish", record.network));
    }
    let recorded = record.netns.as_ref().ok_or("its record names no network namespace")?;
    let gone = || {
        let path = recorded.display();
        format!("its network namespace {path} is gone; `podwire cni audit` shows what is left of the pod")
    };
    let path = record.identity().map_err(|error| error.to_string())?.netns.ok_or_else(gone)?;
    let netns = Netns::find(&path).map_err(|error| error.to_string())?.ok_or_else(gone)?;
    let identity = netns.identity().map_err(|error| error.to_string())?;
    Ok((format!("{identity:?}"), path))
}

/// The addresses that ADD gave to interfaces in the pod.
fn addresses(record: &Record) -> Vec<IpAddr> {
    let Some(attachment) = record.attachment() else { return Vec::new() };
    let is_inside = |index: Option<usize>| {
        index.and_then(|at| attachment.interfaces.get(at)).is_none_or(|one| !one.sandbox.is_empty())
    };
    let inside = attachment.ips.iter().filter(|ip| is_inside(ip.interface));
    inside.map(|ip| ip.address.addr()).collect()
}

/// The name of a pod in reports, as in `podwire cni list`. A namespace that `podwire cni` or cnitool attached without the
/// name of a pod has its own name.
fn name(record: &Record) -> String {
    let by_hand = || {
        let netns = record.netns.as_ref().filter(|_| record.container.starts_with("cnitool-"))?;
        Some(netns.file_name()?.to_string_lossy().into_owned())
    };
    records::pod_name(record).or_else(by_hand).unwrap_or_else(|| records::label(record))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_of_kubernetes_has_its_namespace_and_name() {
        let name_of = |container: &str, args: &[(&str, &str)]| {
            name(&Record {
                path: "/r".into(),
                network: "pods".into(),
                container: container.into(),
                ifname: "eth0".into(),
                netns: Some("/run/netns/one".into()),
                arg_pairs: args.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
                capabilities: serde_json::Map::new(),
                config: Vec::new(),
                result: None,
            })
        };
        let id = "c0ffee".repeat(11);
        assert_eq!(name_of(&id, &[("K8S_POD_NAMESPACE", "shop"), ("K8S_POD_NAME", "db")]), "shop/db");
        assert_eq!(name_of("cnitool-7", &[("K8S_POD_NAMESPACE", "shop"), ("K8S_POD_NAME", "db")]), "shop/db");
        assert_eq!(name_of("cnitool-7", &[]), "one");
        assert_eq!(name_of(&id, &[]), "c0ffeec0ffee");
    }
}

//! Reports pods that kept a larger MTU than the network between the nodes carries, by name.

use std::collections::BTreeMap;

use podwire_cni_plugin::ledger::{self, Entry};
use podwire_cni_spec::Args;
use podwire_kernel::Host;
use podwire_overlay::{oversized_ports, LocalNode, OversizedPort};

use crate::Result;

/// The number of pods that a problem names. The status names all.
const NAMED: usize = 10;

/// The pods of this node with a larger MTU than `mtu`, which is 0 as long as it is unknown.
pub(crate) fn find_oversized(host: &mut Host, local: &LocalNode, mtu: u32) -> Result<BTreeMap<String, u32>> {
    let pod_cidrs: Vec<_> = local.subnets.iter().map(|subnet| subnet.pod_cidr).collect();
    let ports = if mtu == 0 { Vec::new() } else { oversized_ports(host, &pod_cidrs, mtu)? };
    if ports.is_empty() {
        return Ok(BTreeMap::new());
    }
    let recorded: Vec<Entry> = ledger::all().into_iter().flat_map(|file| file.entries).collect();
    Ok(ports.into_iter().map(|port| (name(&port, &recorded), port.mtu)).collect())
}

/// The problem of pods with a larger MTU than `mtu`.
pub(crate) fn problem(pods: &BTreeMap<String, u32>, mtu: u32) -> Option<String> {
    if pods.is_empty() {
        return None;
    }
    let mut named: Vec<String> = pods.iter().take(NAMED).map(|(pod, mtu)| format!("{pod} ({mtu})")).collect();
    if pods.len() > NAMED {
        named.push(format!("and {} more", pods.len() - NAMED));
    }
    Some(format!(
        "the network between the nodes carries packets of {mtu} bytes, but {} pods have a larger MTU: {}; \
         packets of these pods can be lost: start the pods again",
        pods.len(),
        named.join(", ")
    ))
}

/// `namespace/name` of the pod behind a port, from the record of its ADD; otherwise what the kernel knows.
fn name(port: &OversizedPort, recorded: &[Entry]) -> String {
    let args = |entry: &Entry| {
        let args = Args::parse(&entry.args).ok()?;
        Some(format!("{}/{}", args.get("K8S_POD_NAMESPACE")?, args.get("K8S_POD_NAME")?))
    };
    let named = recorded.iter().filter(|entry| entry.owner().matches(&port.alias)).find_map(args);
    named.unwrap_or_else(|| match port.alias.as_str() {
        "" => format!("the pod of {}", port.name),
        owner => owner.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_have_the_names_of_their_adds() {
        let entry = serde_json::json!({ "plugin": "bridge", "network": "cbr0", "container": "c1", "ifname": "eth0",
            "netns": "", "args": "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=db", "path": "", "config": {} });
        let recorded = [serde_json::from_value(entry).unwrap()];
        let of = |alias: &str| {
            name(&OversizedPort { name: "veth1".into(), alias: alias.into(), mtu: 1450 }, &recorded)
        };
        assert_eq!(of("cbr0/c1/eth0"), "shop/db");
        assert_eq!(of("cbr0/c2/eth0"), "cbr0/c2/eth0");
        assert_eq!(of(""), "the pod of veth1");
    }

    #[test]
    fn the_problem_names_the_first_pods_and_counts_all() {
        assert_eq!(problem(&BTreeMap::new(), 1400), None);
        let pods = (10..22).map(|number| (format!("default/p{number}"), 1450)).collect();
        let text = problem(&pods, 1400).unwrap();
        for words in ["1400 bytes", "12 pods", "default/p10 (1450)", "default/p19 (1450), and 2 more"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(!text.contains("p20"), "{text}");
    }
}

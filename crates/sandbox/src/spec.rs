//! What a pod is to be like.

use std::collections::BTreeMap;

use podwire_cni_spec::Dns;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{resolv, sysctl, Bandwidth, PodName, Result};

/// What is asked for when a pod is run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// Its name.
    pub name: PodName,
    /// The id that Kubernetes gave to it (`K8S_POD_UID`); plugins tell by it a pod from a later one of the same name.
    pub uid: String,
    /// The name of its host; the pod's own name if there is none.
    pub hostname: Option<String>,
    /// It uses the node's network and host name, and has no network of its own.
    pub host_network: bool,
    /// How it finds names.
    pub dns: Dns,
    /// Ports of the node that lead into it, as entries of `portMappings`.
    pub ports: Vec<Value>,
    /// How much it may send and receive.
    pub bandwidth: Bandwidth,
    /// Knobs of its namespaces.
    pub sysctls: Vec<(String, String)>,
    /// Labels: kept for whoever looks.
    pub labels: BTreeMap<String, String>,
    /// Annotations: kept, and passed to plugins that have the capability for them.
    pub annotations: BTreeMap<String, String>,
    /// Networks besides the default one, or in its place.
    pub networks: Vec<Wanted>,
}

/// A network that a pod is to be attached to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The network.
    pub network: String,
    /// The interface in the pod: `net1`, `net2`… if not given. `eth0` is the default network's: a network that takes it
    /// stands in that one's place.
    pub ifname: Option<String>,
}

/// What the kernel takes (`__NEW_UTS_LEN` in linux/utsname.h).
const LONGEST_HOSTNAME: usize = 64;
/// Where kubelet cuts a pod's name to make a host name of it.
const CUT: usize = 63;

impl Spec {
    /// A pod with nothing special.
    pub fn new(name: PodName) -> Spec {
        Spec {
            name,
            uid: String::new(),
            hostname: None,
            host_network: false,
            dns: Dns::default(),
            ports: Vec::new(),
            bandwidth: Bandwidth::default(),
            sysctls: Vec::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            networks: Vec::new(),
        }
    }

    /// The name of its host.
    pub fn hostname(&self) -> &str {
        let name = self.name.name();
        let cut = || name[..name.len().min(CUT)].trim_end_matches(['-', '.']);
        self.hostname.as_deref().unwrap_or_else(cut)
    }

    /// Whether it makes sense; told before anything is made.
    pub(crate) fn check(&self) -> Result<()> {
        let fail =
            |text: String, hint: &str| Err(podwire_cni_spec::Error::env(text).with_details(hint).into());
        resolv::check(&self.dns)?;
        podwire_cni_spec::Args::from_pairs([("K8S_POD_UID", &*self.uid)])?;
        for (key, value) in &self.sysctls {
            sysctl::path(key, self.host_network)?;
            if value.is_empty() || value.contains(['\n', '\0']) {
                return fail(format!("sysctl {key:?} has no value of one line: {value:?}"), "");
            }
        }
        let hostname = self.hostname();
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        if hostname.is_empty() || hostname.len() > LONGEST_HOSTNAME || !hostname.chars().all(is_name) {
            let hint = "letters, digits, - and ., at most 64";
            return fail(format!("{hostname:?} is no name of a host"), hint);
        }
        let own = [
            (self.hostname.is_some(), "a host name"),
            (!self.ports.is_empty(), "ports"),
            (!self.networks.is_empty(), "networks"),
            (self.bandwidth != Bandwidth::default(), "a limit of bandwidth"),
        ];
        match own.iter().find(|(asked, _)| *asked && self.host_network) {
            Some((_, what)) => fail(
                format!("a pod on the host's network has no {what} of its own").replace("no a ", "no "),
                "",
            ),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_called_like_its_pod() {
        let long = format!("{}-.{}", "a".repeat(62), "b".repeat(9)).replace("-.", "a.");
        let spec = Spec::new(PodName::new("default", &long).unwrap());
        assert_eq!(spec.hostname(), "a".repeat(63));
        assert!(spec.check().is_ok());
        assert!(Spec { hostname: Some("a b".into()), ..spec.clone() }.check().is_err());
        assert!(Spec { hostname: Some("x".repeat(65)), ..spec }.check().is_err());
    }

    #[test]
    fn a_pod_on_the_hosts_network_has_none_of_its_own() {
        let spec = Spec { host_network: true, ..Spec::new(PodName::new("default", "a").unwrap()) };
        assert!(spec.check().is_ok());
        let wanted = Wanted { network: "x".into(), ifname: None };
        let error = Spec { networks: vec![wanted], ..spec.clone() }.check().unwrap_err();
        assert_eq!(error.to_string(), "a pod on the host's network has no networks of its own");
        let error = Spec { hostname: Some("b".into()), ..spec }.check().unwrap_err();
        assert_eq!(error.to_string(), "a pod on the host's network has no host name of its own");
    }
}

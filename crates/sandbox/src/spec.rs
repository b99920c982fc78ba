//! The spec of a pod.

use std::collections::BTreeMap;

use podwire_cni_spec::Dns;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{resolv, sysctl, Bandwidth, PodName, Result};

/// The spec of a pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// Its name.
    pub name: PodName,
    /// Its Kubernetes UID (`K8S_POD_UID`), by which plugins distinguish pods of the same name.
    pub uid: String,
    /// Its host name; by default the pod's name.
    pub hostname: Option<String>,
    /// Whether it uses the node's network and host name.
    pub host_network: bool,
    /// Its DNS settings.
    pub dns: Dns,
    /// Host ports, as entries of `portMappings`.
    pub ports: Vec<Value>,
    /// Its bandwidth limits.
    pub bandwidth: Bandwidth,
    /// Sysctls of its namespaces.
    pub sysctls: Vec<(String, String)>,
    /// Labels, for display.
    pub labels: BTreeMap<String, String>,
    /// Annotations, for display and for plugins with the capability.
    pub annotations: BTreeMap<String, String>,
    /// Networks besides the default one, or in its place.
    pub networks: Vec<NetworkRequest>,
}

/// A network to attach a pod to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRequest {
    /// The network.
    pub network: String,
    /// The interface in the pod; by default `net1`, `net2`… A network with `eth0` replaces the default network.
    pub ifname: Option<String>,
}

/// The longest host name (`__NEW_UTS_LEN` in linux/utsname.h).
const MAX_HOSTNAME: usize = 64;
/// The length to which kubelet cuts a pod's name for its host name.
const CUT: usize = 63;

impl Spec {
    /// A pod with default settings.
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

    /// Its host name.
    pub fn hostname(&self) -> &str {
        let name = self.name.name();
        let cut = || name[..name.len().min(CUT)].trim_end_matches(['-', '.']);
        self.hostname.as_deref().unwrap_or_else(cut)
    }

    /// Checks the spec before anything is created.
    pub(crate) fn check(&self) -> Result<()> {
        let fail =
            |text: String, hint: &str| Err(podwire_cni_spec::Error::env(text).with_details(hint).into());
        resolv::check(&self.dns)?;
        podwire_cni_spec::Args::from_pairs([("K8S_POD_UID", &*self.uid)])?;
        for (key, value) in &self.sysctls {
            sysctl::path(key, self.host_network)?;
            if value.is_empty() || value.contains(['\n', '\0']) {
                return fail(format!("sysctl {key:?}: {value:?} is not a single-line value"), "");
            }
        }
        let hostname = self.hostname();
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        if hostname.is_empty() || hostname.len() > MAX_HOSTNAME || !hostname.chars().all(is_name) {
            let hint = "letters, digits, - and ., at most 64";
            return fail(format!("{hostname:?} is not a host name"), hint);
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
    fn the_host_name_is_the_pods_name() {
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
        let wanted = NetworkRequest { network: "x".into(), ifname: None };
        let error = Spec { networks: vec![wanted], ..spec.clone() }.check().unwrap_err();
        assert_eq!(error.to_string(), "a pod on the host's network has no networks of its own");
        let error = Spec { hostname: Some("b".into()), ..spec }.check().unwrap_err();
        assert_eq!(error.to_string(), "a pod on the host's network has no host name of its own");
    }
}

//! The names of endpoints: four parts with dashes between them; a dash within a part is doubled.

use podwire_agent_ipc::pods::Endpoint;
use podwire_block_ipam::key::ENDPOINTS;

/// The orchestrator of pods, and that of other containers.
const KUBERNETES: &str = "k8s";
const OTHERS: &str = "cni";
/// The namespace of containers without a pod.
const DEFAULT: &str = "default";

/// The parts of a name, and the object's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) namespace: String,
    pub(super) node: String,
    pub(super) orchestrator: &'static str,
    /// The pod, or the container id if there is no pod.
    pub(super) workload: String,
    /// The interface in the pod.
    pub(super) endpoint: String,
}

impl Name {
    /// The name of an endpoint of this node.
    pub(super) fn of(endpoint: &Endpoint, node: &str) -> Name {
        let (namespace, orchestrator, workload) = if endpoint.pod.is_empty() {
            (DEFAULT, OTHERS, &endpoint.owner.container)
        } else {
            (endpoint.namespace.as_str(), KUBERNETES, &endpoint.pod)
        };
        Name {
            namespace: namespace.into(),
            node: node.into(),
            orchestrator,
            workload: workload.clone(),
            endpoint: endpoint.owner.ifname.clone(),
        }
    }

    /// Whether it is the name of a pod's endpoint.
    pub(super) fn is_pod(&self) -> bool {
        self.orchestrator == KUBERNETES
    }

    /// The object's name. A part that begins or ends with a dash would be ambiguous, so there is no name then.
    pub(super) fn text(&self) -> Option<String> {
        let parts = [&self.node, self.orchestrator, &self.workload, &self.endpoint];
        let is_valid = |part: &&str| !part.is_empty() && !part.starts_with('-') && !part.ends_with('-');
        parts.iter().all(is_valid).then(|| parts.map(|part| part.replace('-', "--")).join("-"))
    }

    /// The key of the object.
    pub(super) fn key(&self) -> Option<String> {
        Some(format!("{ENDPOINTS}{}/{}", self.namespace, self.text()?))
    }

    /// The prefix of the keys of all objects of this pod, and of some other pods.
    pub(super) fn prefix(&self) -> Option<String> {
        let key = self.key()?;
        key.strip_suffix(&self.endpoint.replace('-', "--")).map(str::to_owned)
    }

    /// The name that belongs to a key, if it is one of this pod's.
    pub(super) fn found(&self, key: &str) -> Option<Name> {
        let endpoint = key.strip_prefix(&self.prefix()?)?;
        let single = endpoint.replace("--", "");
        // Otherwise it is another pod, whose name continues after a dash.
        let is_valid = !endpoint.is_empty() && !single.contains('-') && !endpoint.starts_with('-');
        is_valid.then(|| Name { endpoint: endpoint.replace("--", "-"), ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use podwire_agent_ipc::Owner;

    use super::*;

    fn endpoint(pod: &str, ifname: &str) -> Endpoint {
        let owner = Owner { network: "net".into(), container: "4711".into(), ifname: ifname.into() };
        Endpoint { owner, namespace: "shop".into(), pod: pod.into(), ..Endpoint::default() }
    }

    #[test]
    fn names_equal_calicos() {
        let text = |pod: &str, ifname: &str| Name::of(&endpoint(pod, ifname), "node-1").text();
        assert_eq!(text("web-7f-x", "eth0").unwrap(), "node--1-k8s-web--7f--x-eth0");
        assert_eq!(text("", "eth0").unwrap(), "node--1-cni-4711-eth0");
        assert_eq!(text("web-", "eth0"), None);
        let key = Name::of(&endpoint("", "eth0"), "n").key().unwrap();
        assert_eq!(key, "/calico/resources/v3/projectcalico.org/workloadendpoints/default/n-cni-4711-eth0");
    }

    #[test]
    fn another_endpoint_of_the_pod_is_found() {
        let name = Name::of(&endpoint("web", "eth0"), "n");
        let root = "/calico/resources/v3/projectcalico.org/workloadendpoints/shop/n-k8s-web-";
        assert_eq!(name.prefix().unwrap(), root);
        assert_eq!(name.found(&format!("{root}net1")).unwrap().endpoint, "net1");
        assert_eq!(name.found(&format!("{root}a--b")).unwrap().endpoint, "a-b");
        assert_eq!(name.found(&format!("{root}-1-eth0")), None, "it is the pod web-1");
        assert_eq!(
            name.found("/calico/resources/v3/projectcalico.org/workloadendpoints/shop/n-k8s-we-b"),
            None
        );
    }
}

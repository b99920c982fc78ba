//! What an endpoint is called. Its name is made of four parts with dashes between them; a dash within a part is written twice.

use podwire_agent_ipc::pods::Endpoint;
use podwire_block_ipam::key::ENDPOINTS;

/// The orchestrator of pods, and of containers that are none.
const KUBERNETES: &str = "k8s";
const OTHERS: &str = "cni";
/// The namespace of containers that are no pods.
const DEFAULT: &str = "default";

/// The parts of a name, and where the object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) namespace: String,
    pub(super) node: String,
    pub(super) orchestrator: &'static str,
    /// The pod, or the container where there are no pods.
    pub(super) workload: String,
    /// The interface in the pod.
    pub(super) endpoint: String,
}

impl Name {
    /// What an endpoint of this node is called.
    pub(super) fn of(endpoint: &Endpoint, node: &str) -> Name {
        let (namespace, orchestrator, workload) = match endpoint.pod.is_empty() {
            true => (DEFAULT, OTHERS, &endpoint.owner.container),
            false => (endpoint.namespace.as_str(), KUBERNETES, &endpoint.pod),
        };
        Name {
            namespace: namespace.into(),
            node: node.into(),
            orchestrator,
            workload: workload.clone(),
            endpoint: endpoint.owner.ifname.clone(),
        }
    }

    /// Whether it is a pod's.
    pub(super) fn is_pod(&self) -> bool {
        self.orchestrator == KUBERNETES
    }

    /// The object's name. A part that begins or ends with a dash could not be told from others: there is no name then.
    pub(super) fn text(&self) -> Option<String> {
        let parts = [&self.node, self.orchestrator, &self.workload, &self.endpoint];
        let is_sound = |part: &&str| !part.is_empty() && !part.starts_with('-') && !part.ends_with('-');
        parts.iter().all(is_sound).then(|| parts.map(|part| part.replace('-', "--")).join("-"))
    }

    /// The key of the object.
    pub(super) fn key(&self) -> Option<String> {
        Some(format!("{ENDPOINTS}{}/{}", self.namespace, self.text()?))
    }

    /// What the keys begin with of all objects about this pod, and some others.
    pub(super) fn prefix(&self) -> Option<String> {
        let key = self.key()?;
        key.strip_suffix(&self.endpoint.replace('-', "--")).map(str::to_owned)
    }

    /// The same pod's name with the endpoint that a key names, if it is a key of this pod.
    pub(super) fn found(&self, key: &str) -> Option<Name> {
        let endpoint = key.strip_prefix(&self.prefix()?)?;
        let single = endpoint.replace("--", "");
        // Another pod, whose name goes on after a dash.
        let sound = !endpoint.is_empty() && !single.contains('-') && !endpoint.starts_with('-');
        sound.then(|| Name { endpoint: endpoint.replace("--", "-"), ..self.clone() })
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
    fn names_are_calicos() {
        let text = |pod: &str, ifname: &str| Name::of(&endpoint(pod, ifname), "node-1").text();
        assert_eq!(text("web-7f-x", "eth0").unwrap(), "node--1-k8s-web--7f--x-eth0");
        assert_eq!(text("", "eth0").unwrap(), "node--1-cni-4711-eth0");
        assert_eq!(text("web-", "eth0"), None);
        let key = Name::of(&endpoint("", "eth0"), "n").key().unwrap();
        assert_eq!(key, "/calico/resources/v3/projectcalico.org/workloadendpoints/default/n-cni-4711-eth0");
    }

    #[test]
    fn a_pods_other_endpoint_is_found_and_another_pods_is_not() {
        let name = Name::of(&endpoint("web", "eth0"), "n");
        let root = "/calico/resources/v3/projectcalico.org/workloadendpoints/shop/n-k8s-web-";
        assert_eq!(name.prefix().unwrap(), root);
        assert_eq!(name.found(&format!("{root}net1")).unwrap().endpoint, "net1");
        assert_eq!(name.found(&format!("{root}a--b")).unwrap().endpoint, "a-b");
        assert_eq!(name.found(&format!("{root}-1-eth0")), None, "of the pod web-1");
        assert_eq!(
            name.found("/calico/resources/v3/projectcalico.org/workloadendpoints/shop/n-k8s-we-b"),
            None
        );
    }
}

//! What the runtime's records say about attachments.

use podwire_cni_runtime::Record;
use serde_json::{json, Value};

use crate::container_ids::{self, short};
use crate::publish;

/// The addresses of an attachment.
pub(super) fn addresses(record: &Record) -> Vec<String> {
    let ips = record.attachment().map(|attachment| attachment.ips).unwrap_or_default();
    ips.iter().map(|ip| ip.address.to_string()).collect()
}

/// The ports that are published for an attachment.
pub(super) fn ports(record: &Record) -> Vec<Value> {
    let list = record.network_list();
    list.map(|list| publish::of_attachment(&record.capabilities, &list)).unwrap_or_default()
}

/// The namespace and the name of the pod in Kubernetes, if the runtime passed them.
fn pod(record: &Record) -> Option<(String, String)> {
    let args = record.args();
    let arg = |key| args.get(key).filter(|value| !value.is_empty()).map(String::from);
    Some((arg("K8S_POD_NAMESPACE").unwrap_or_default(), arg("K8S_POD_NAME")?))
}

/// The same for JSON; null if it is unknown.
pub(super) fn pod_json(record: &Record) -> Value {
    pod(record).map_or(Value::Null, |(namespace, name)| json!({ "namespace": namespace, "name": name }))
}

/// `namespace/name` of the pod in Kubernetes, if the runtime passed them.
pub(crate) fn pod_name(record: &Record) -> Option<String> {
    let (namespace, name) = pod(record)?;
    Some(if namespace.is_empty() { name } else { format!("{namespace}/{name}") })
}

/// The container of an attachment for people: its pod, if that is known, else its short id.
pub(crate) fn label(record: &Record) -> String {
    pod_name(record).unwrap_or_else(|| short(&record.container).to_owned())
}

/// The owner of an object, `NETWORK/CONTAINER/IFNAME`, for people.
pub(super) fn owner_label(owner: &str, records: &[Record]) -> String {
    let is_owner = |record: &&Record| {
        let Record { network, container, ifname, .. } = record;
        owner == format!("{network}/{container}/{ifname}")
    };
    match records.iter().find(is_owner) {
        Some(record) => format!("{}/{}/{}", record.network, label(record), record.ifname),
        None => owner.split('/').map(short).collect::<Vec<_>>().join("/"),
    }
}

/// A text for people, in which containers have the names of their pods.
pub(super) fn with_names(text: &str, records: &[Record]) -> String {
    let of_pod = |id: &str| records.iter().find(|record| record.container == id).map(label);
    container_ids::shorten(text, of_pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_called_by_its_pod() {
        let record = |args: &[(&str, &str)]| Record {
            path: "/r".into(),
            network: "pods".into(),
            container: "c0ffee".repeat(11),
            ifname: "eth0".into(),
            netns: None,
            arg_pairs: args.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            capabilities: serde_json::Map::new(),
            config: Vec::new(),
            result: None,
        };
        let (namespace, name) = (("K8S_POD_NAMESPACE", "shop"), ("K8S_POD_NAME", "web"));
        let cases = [
            (vec![namespace, name], "shop/web"),
            (vec![name], "web"),
            (vec![namespace], "c0ffeec0ffee"),
            (vec![("K8S_POD_NAME", "")], "c0ffeec0ffee"),
        ];
        for (args, expected) in cases {
            assert_eq!(label(&record(&args)), expected, "{args:?}");
        }
        let record = record(&[namespace, name]);
        let owner = format!("pods/{}/eth0", record.container);
        assert_eq!(owner_label(&owner, std::slice::from_ref(&record)), "pods/shop/web/eth0");
        assert_eq!(owner_label(&owner, &[]), "pods/c0ffeec0ffee/eth0");
        let text = format!("address 10.1.0.2 belongs to {owner}");
        let named = with_names(&text, std::slice::from_ref(&record));
        assert_eq!(named, "address 10.1.0.2 belongs to pods/shop/web/eth0");
        assert_eq!(pod_json(&record), json!({"namespace": "shop", "name": "web"}));
    }
}

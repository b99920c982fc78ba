//! Calico's custom resources, as far as block IPAM uses them.

use serde_json::{json, Value};

/// A custom resource.
pub(super) struct Resource {
    kind: &'static str,
    pub(super) plural: &'static str,
    /// What Calico's definition demands of `spec`.
    spec: Value,
}

impl Resource {
    /// The CustomResourceDefinition.
    pub(super) fn definition(&self, group: &str) -> Value {
        let (name, version) = group.split_once('/').expect("a group and a version");
        let Resource { kind, plural, spec } = self;
        let schema = json!({
            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"spec": spec},
        });
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{name}")},
            "spec": {
                "group": name, "scope": "Cluster",
                "names": {
                    "kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": kind.to_lowercase(),
                },
                "versions": [{"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
            },
        })
    }
}

/// The resources of a group. Unknown fields are kept, except in the older group's configuration, which drops them as
/// Calico's own definition does.
pub(super) fn resources(group: &str) -> Vec<Resource> {
    let is_v1 = group == "crd.projectcalico.org/v1";
    let spec = |required: &[&str], properties: Value| {
        json!({
            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "required": required, "properties": properties,
        })
    };
    let (text, number, boolean) =
        (json!({"type": "string"}), json!({"type": "integer"}), json!({"type": "boolean"}));
    let numbers = json!({"type": "object", "additionalProperties": {"type": "integer", "format": "int64"}});
    // The older group writes the deletion mark of an affinity as text.
    let deletion_mark = if is_v1 { &text } else { &boolean };
    let block = json!({
        "cidr": text, "affinity": text, "affinityClaimTime": {"type": "string", "format": "date-time"},
        "allocations": {"type": "array", "items": {"type": "integer", "nullable": true}},
        "unallocated": {"type": "array", "items": number},
        "attributes": {"type": "array", "items": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
                "handle_id": text, "secondary": {"type": "object", "additionalProperties": text},
            },
        }},
        "sequenceNumber": {"type": "integer", "format": "int64"}, "sequenceNumberForAllocation": numbers,
        "deleted": boolean, "strictAffinity": boolean,
    });
    let affinity = json!({"cidr": text, "deleted": deletion_mark, "node": text, "state": text, "type": text});
    let handle = json!({"block": numbers, "deleted": boolean, "handleID": text});
    let fields = json!({
        "autoAllocateBlocks": boolean, "strictAffinity": boolean, "maxBlocksPerHost": number, "number": number,
    });
    let mut config = spec(&["autoAllocateBlocks", "strictAffinity"], fields);
    if is_v1 {
        config.as_object_mut().unwrap().remove("x-kubernetes-preserve-unknown-fields");
    }
    let (config_kind, config_plural) =
        if is_v1 { ("IPAMConfig", "ipamconfigs") } else { ("IPAMConfiguration", "ipamconfigurations") };
    let block_needs =
        ["allocations", "attributes", "cidr", "sequenceNumber", "strictAffinity", "unallocated"];
    let pool = json!({"cidr": text, "blockSize": number, "disabled": boolean});
    let reservation = json!({"reservedCIDRs": {"type": "array", "items": text}});
    let affinity_needs = ["cidr", "deleted", "node", "state"];
    vec![
        Resource { kind: "IPAMBlock", plural: "ipamblocks", spec: spec(&block_needs, block) },
        Resource { kind: "BlockAffinity", plural: "blockaffinities", spec: spec(&affinity_needs, affinity) },
        Resource { kind: "IPAMHandle", plural: "ipamhandles", spec: spec(&["block", "handleID"], handle) },
        Resource { kind: config_kind, plural: config_plural, spec: config },
        Resource { kind: "IPPool", plural: "ippools", spec: spec(&["cidr"], pool) },
        Resource { kind: "IPReservation", plural: "ipreservations", spec: spec(&[], reservation) },
        Resource { kind: "ClusterInformation", plural: "clusterinformations", spec: spec(&[], json!({})) },
    ]
}

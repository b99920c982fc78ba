//! The fields of objects that Services depend on.

use podwire_kubernetes::Fields::{self, All, Only};
use podwire_kubernetes::Selection;

const METADATA: Fields = Only(&[
    ("name", All),
    ("namespace", All),
    ("resourceVersion", All),
    ("labels", All),
    ("creationTimestamp", All),
]);

const SLICE_METADATA: Fields = Only(&[
    ("name", All),
    ("namespace", All),
    ("resourceVersion", All),
    ("labels", All),
    ("annotations", Only(&[("endpoints.kubernetes.io/last-change-trigger-time", All)])),
]);

const NODE_METADATA: Fields =
    Only(&[("name", All), ("resourceVersion", All), ("labels", All), ("deletionTimestamp", All)]);

#[derive(Clone, Debug)]
pub(super) struct ServiceFields;

impl Selection for ServiceFields {
    const FIELDS: Fields =
        Only(&[("metadata", METADATA), ("spec", All), ("status", Only(&[("loadBalancer", All)]))]);
}

#[derive(Clone, Debug)]
pub(super) struct SliceFields;

impl Selection for SliceFields {
    const FIELDS: Fields = Only(&[
        ("metadata", SLICE_METADATA),
        ("addressType", All),
        ("ports", All),
        ("endpoints", Only(&[("addresses", All), ("conditions", All), ("nodeName", All), ("hints", All)])),
    ]);
}

#[derive(Clone, Debug)]
pub(super) struct NodeFields;

impl Selection for NodeFields {
    const FIELDS: Fields = Only(&[
        ("metadata", NODE_METADATA),
        ("spec", Only(&[("taints", Only(&[("key", All)]))])),
        ("status", Only(&[("addresses", All)])),
    ]);
}

#[derive(Clone, Debug)]
pub(super) struct ServiceCidrFields;

impl Selection for ServiceCidrFields {
    const FIELDS: Fields = Only(&[("metadata", METADATA), ("spec", All)]);
}

//! The fields of pods, namespaces and nodes that the [cache](super::cache) parses.

use podwire_kubernetes::Fields::{self, All, Only};
use podwire_kubernetes::Selection;

#[derive(Clone, Debug)]
pub(super) struct PodFields;

impl Selection for PodFields {
    const FIELDS: Fields = Only(&[
        (
            "metadata",
            Only(&[
                ("name", All),
                ("namespace", All),
                ("uid", All),
                ("resourceVersion", All),
                ("generateName", All),
                ("labels", All),
                ("annotations", All),
            ]),
        ),
        (
            "spec",
            Only(&[
                ("serviceAccountName", All),
                ("containers", Only(&[("ports", All)])),
                ("initContainers", Only(&[("ports", All)])),
            ]),
        ),
    ]);
}

#[derive(Clone, Debug)]
pub(super) struct NamespaceFields;

impl Selection for NamespaceFields {
    const FIELDS: Fields = Only(&[(
        "metadata",
        Only(&[("name", All), ("resourceVersion", All), ("labels", All), ("annotations", All)]),
    )]);
}

#[derive(Clone, Debug)]
pub(super) struct NodeFields;

impl Selection for NodeFields {
    const FIELDS: Fields = Only(&[
        ("metadata", Only(&[("name", All), ("resourceVersion", All)])),
        ("spec", Only(&[("podCIDRs", All)])),
    ]);
}

//! Single annotations: reading one, and the error for one that cannot be honoured.

use podwire_agent_ipc::pods::StringMap;
use podwire_cni_spec::Error;

/// The prefix of annotations about a pod's network.
pub(super) const PREFIX: &str = "cni.projectcalico.org/";

/// The annotation's text, if it is not empty.
pub(super) fn non_empty<'a>(annotations: &'a StringMap, name: &str) -> Option<&'a str> {
    annotations.get(name).map(String::as_str).filter(|text| !text.is_empty())
}

/// The error for an annotation, named with or without [`PREFIX`].
pub(super) fn refused(annotation: &str, why: &str) -> Error {
    let prefix = if annotation.contains('/') { "" } else { PREFIX };
    let hint = "correct the annotation of the pod or its namespace, or the network's config; ADD succeeds afterwards";
    Error::invalid_config(format!("{why} (annotation {prefix}{annotation})")).with_details(hint)
}

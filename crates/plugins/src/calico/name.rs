//! The name of the node's end of a pod's veth pair. Calico's node agent computes the same name.

use podwire_cni_plugin::Request;
use sha1::{Digest, Sha1};

use crate::calico_ipam::config::pod;

/// The prefix of the names.
pub(super) const PREFIX: &str = "cali";

/// The number of characters after the prefix.
const SUFFIX_LENGTH: usize = 11;

/// The possible names, preferred first: one derived from the pod if the runtime passes a pod, else two derived from the
/// container. Container ids that begin alike (cnitool's do) share the first name, so the second container gets the
/// other one, which Calico learns from the endpoint.
pub(super) fn node_end_names(req: &Request<'_>) -> Vec<String> {
    match pod(req) {
        Some((namespace, pod)) => vec![of_pod(&namespace, &pod)],
        None => {
            let usual = format!("{PREFIX}{}", req.container.chars().take(SUFFIX_LENGTH).collect::<String>());
            vec![usual, hashed(&format!("{}.{}.{}", req.network, req.container, req.ifname))]
        }
    }
}

fn of_pod(namespace: &str, pod: &str) -> String {
    hashed(&format!("{namespace}.{pod}"))
}

fn hashed(text: &str) -> String {
    let hash = Sha1::digest(text);
    let text: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{PREFIX}{}", &text[..SUFFIX_LENGTH])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_equals_calicos() {
        assert_eq!(of_pod("default", "nginx"), "calic440f455693");
    }
}

//! What the node's end of a pod's cable is called. Calico's node agent computes the same name, so every letter counts.

use podwire_cni_plugin::Request;
use sha1::{Digest, Sha1};

use crate::calico_ipam::config::pod;

/// What the names begin with.
pub(super) const PREFIX: &str = "cali";

/// How many letters follow.
const LETTERS: usize = 11;

/// After the pod, if the runtime is of Kubernetes, else after the container. Containers whose ids begin alike (those of cnitool do) would have one
/// name: whoever comes second has another, which Calico learns from the endpoint.
pub(super) fn of_end(req: &Request<'_>) -> Vec<String> {
    match pod(req) {
        Some((namespace, pod)) => vec![of_pod(&namespace, &pod)],
        None => {
            let usual = format!("{PREFIX}{}", req.container.chars().take(LETTERS).collect::<String>());
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
    format!("{PREFIX}{}", &text[..LETTERS])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_calicos() {
        assert_eq!(of_pod("default", "nginx"), "calic440f455693");
    }
}

//! The names and labels of objects. They must be Calico's: Calico does not find objects with other names.

use std::net::IpAddr;

use data_encoding::BASE32_NOPAD;
use ipnet::IpNet;
use podwire_block_ipam::{AffinityOwner, IpFamily};
use serde_json::{Map, Value};
use sha2::Sha256;
use sha3::{Digest, Sha3_256};

/// The label with the hash of an affinity's owner: a name may be too long for a label.
pub(crate) const HOSTNAME_HASH: &str = "projectcalico.org/hostname-hash";
/// The label with the type of an affinity, `host` or `virtual`.
pub(crate) const AFFINITY_TYPE: &str = "projectcalico.org/affinity-type";
const IP_VERSION: &str = "projectcalico.org/ip-version";

/// The maximum length. The API server accepts 253 characters, but Calico shortens names of 253 already.
const MAX_LENGTH: usize = 252;

/// `10-244-1-0-26`.
pub(crate) fn of_block(cidr: IpNet) -> String {
    cidr.to_string().replace(['.', ':', '/'], "-")
}

/// The block of a name: the inverse of [`of_block`].
pub(crate) fn to_block(name: &str) -> Option<IpNet> {
    let (address, length) = name.rsplit_once('-')?;
    let v4 = || address.replace('-', ".").parse::<std::net::Ipv4Addr>().ok().map(IpAddr::V4);
    let v6 = || address.replace('-', ":").parse::<std::net::Ipv6Addr>().ok().map(IpAddr::V6);
    let cidr = IpNet::new(v4().or_else(v6)?, length.parse().ok()?).ok()?;
    (of_block(cidr) == name).then_some(cidr)
}

/// `node1-10-244-1-0-26`. If the name would be too long, the owner's name is cut and a part of a hash is appended.
pub(crate) fn of_affinity(owner: &AffinityOwner, cidr: IpNet) -> String {
    let (owner, block) = (owner.name(), of_block(cidr));
    let whole = format!("{owner}-{block}");
    if whole.len() <= MAX_LENGTH {
        return whole;
    }
    // Two hyphens and eleven digits of the hash.
    let room = MAX_LENGTH - block.len() - 13;
    let cut = (0..=room).rev().find_map(|length| owner.get(..length)).unwrap_or_default();
    let hash: String =
        Sha256::digest(format!("{owner}+{block}")).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{cut}-{block}-{}", &hash[..11])
}

/// The value of the label [`HOSTNAME_HASH`].
pub(crate) fn hash_of(owner: &str) -> String {
    BASE32_NOPAD.encode(&Sha3_256::digest(owner))
}

/// `host` or `virtual`.
pub(crate) fn type_of(owner: &AffinityOwner) -> &'static str {
    match owner {
        AffinityOwner::Host(_) => "host",
        AffinityOwner::Virtual(_) => "virtual",
    }
}

/// The labels of an affinity.
pub(crate) fn labels(owner: &AffinityOwner, cidr: IpNet) -> Map<String, Value> {
    let labels = [
        (AFFINITY_TYPE, type_of(owner).into()),
        (HOSTNAME_HASH, hash_of(owner.name())),
        (IP_VERSION, IpFamily::of_net(cidr).digit().to_string()),
    ];
    labels.into_iter().map(|(label, value)| (label.to_owned(), Value::String(value))).collect()
}

/// Whether an object can have this name. A name is a part of the request's path.
pub(crate) fn is_valid(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    (1..=253).contains(&name.len()) && name.chars().all(fits) && name != "." && name != ".."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_labels_are_calicos() {
        let v4: IpNet = "10.244.1.0/26".parse().unwrap();
        let v6: IpNet = "fd00::40/122".parse().unwrap();
        assert_eq!(of_block(v4), "10-244-1-0-26");
        assert_eq!(of_block(v6), "fd00--40-122");
        for cidr in [v4, v6, "fd00::/122".parse().unwrap(), "::/128".parse().unwrap()] {
            assert_eq!(to_block(&of_block(cidr)), Some(cidr));
        }
        assert_eq!(to_block("kept"), None);
        assert_eq!(of_affinity(&AffinityOwner::host("node1"), v4), "node1-10-244-1-0-26");
        assert_eq!(hash_of("node1"), "7DS2CCNJGGLTHBDQLLFO6SX24SY2YDDEG3W2VN556FA2W4DLLV5A");
        let balancer = labels(&AffinityOwner::Virtual("load-balancer".into()), v6);
        assert_eq!((&balancer[AFFINITY_TYPE], &balancer[IP_VERSION]), (&"virtual".into(), &"6".into()));
    }

    #[test]
    fn a_long_name_is_cut_and_unique() {
        let cidr: IpNet = "10.244.1.0/26".parse().unwrap();
        let name = |owner: &str| of_affinity(&AffinityOwner::host(owner), cidr);
        assert_eq!(name(&"n".repeat(238)).len(), 252, "the maximum length");
        let (one, other) = (name(&"n".repeat(239)), name(&"n".repeat(240)));
        assert_eq!(one.len(), 252);
        assert!(one.starts_with("nnn") && one.contains("n-10-244-1-0-26-"), "{one}");
        assert_ne!(one, other);
        assert_eq!(
            name(&"ä".repeat(200)).chars().filter(|c| *c == 'ä').count(),
            113,
            "characters are not split"
        );
    }

    #[test]
    fn invalid_names_are_rejected() {
        assert!(is_valid("node1-10-244-1-0-26") && is_valid("k8s-pod-network.4711"));
        for bad in ["", "a/b", "a b", "a?b", "a%2f", "A", "..", &"a".repeat(254)] {
            assert!(!is_valid(bad), "{bad}");
        }
    }
}

//! The owner of kernel objects. Firewall elements name it in their comment, links in their alias.

use std::borrow::Cow;
use std::fmt::{self, Write};

use podwire_netlink::nft::MAX_COMMENT;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha512};

/// An attachment: the interface of a container in a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner {
    /// The network's name.
    pub network: String,
    /// The container's id.
    pub container: String,
    /// The interface's name in the container.
    pub ifname: String,
}

// With the interface name (at most 15 bytes) and two slashes these fit into MAX_COMMENT.
const MAX_NETWORK: usize = 80;
const MAX_CONTAINER: usize = 150;
/// Names of networks, containers and interfaces do not contain it: a shortened name never equals a full one.
const MARK: char = '~';
const DIGITS: usize = 16;

impl Owner {
    /// The owner of `ifname` in `container`, attached to `network`.
    pub fn new(network: impl Into<String>, container: impl Into<String>, ifname: impl Into<String>) -> Owner {
        Owner { network: network.into(), container: container.into(), ifname: ifname.into() }
    }

    /// The comment of this owner's elements: `network/container/ifname`. Long names are shortened and end in a hash.
    pub fn comment(&self) -> String {
        let Owner { network, container, ifname } = self;
        if network.len() + container.len() + ifname.len() + 2 <= MAX_COMMENT {
            return format!("{network}/{container}/{ifname}");
        }
        format!("{}/{}/{ifname}", shorten(network, MAX_NETWORK), shorten(container, MAX_CONTAINER))
    }

    /// The names of network and container, shortened with a hash if they are too long for a file name.
    pub fn short_names(&self) -> (Cow<'_, str>, Cow<'_, str>) {
        (shorten(&self.network, MAX_NETWORK), shorten(&self.container, MAX_CONTAINER))
    }

    /// Whether the comment names this owner.
    pub fn matches(&self, comment: &str) -> bool {
        self.comment() == comment
    }

    /// Whether the comment names the same container, with any network and interface.
    pub fn shares_container(&self, comment: &str) -> bool {
        let rest = comment.split_once('/').and_then(|(_, rest)| rest.rsplit_once('/'));
        rest.is_some_and(|(container, _)| {
            container == self.container || container == shorten(&self.container, MAX_CONTAINER)
        })
    }

    /// The comment of elements that all pods of a network share.
    pub fn network_comment(network: &str) -> String {
        shorten(network, MAX_NETWORK).into_owned()
    }

    /// Whether the comment names an owner in the network.
    pub fn is_in(comment: &str, network: &str) -> bool {
        comment.split_once('/').is_some_and(|(of, _)| of == network || of == shorten(network, MAX_NETWORK))
    }
}

impl fmt::Display for Owner {
    /// `network/container/ifname`, never shortened.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.network, self.container, self.ifname)
    }
}

fn shorten(name: &str, max: usize) -> Cow<'_, str> {
    if name.len() <= max {
        return Cow::Borrowed(name);
    }
    let mut end = max - DIGITS - 1;
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    Cow::Owned(format!("{}{MARK}{}", &name[..end], hash(name, DIGITS)))
}

/// The first `digits` hexadecimal digits of the text's SHA-512.
pub(crate) fn hash(text: &str, digits: usize) -> String {
    let mut hex = String::with_capacity(128);
    for byte in Sha512::digest(text.as_bytes()) {
        let _ = write!(hex, "{byte:02x}");
    }
    hex.truncate(digits);
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_name_the_owner() {
        let owner = Owner::new("pods", "0a1b", "eth0");
        assert_eq!(owner.comment(), "pods/0a1b/eth0");
        assert!(owner.matches("pods/0a1b/eth0") && !owner.matches("pods/0a1b/eth1"));
        assert!(Owner::is_in("pods/0a1b/eth0", "pods") && !Owner::is_in("pods2/0a1b/eth0", "pods"));
        assert!(owner.shares_container("others/0a1b/eth1") && !owner.shares_container("pods/0a1/eth0"));
        assert!(!owner.shares_container("0a1b") && !owner.shares_container("0a1b/eth0"));
    }

    #[test]
    fn long_names_are_shortened_and_stay_distinct() {
        let long = |end: &str| Owner::new("n".repeat(120), "c".repeat(200) + end, "a-long-ifname-x");
        let (one, other) = (long("1"), long("2"));
        assert!(one.comment().len() <= MAX_COMMENT, "{}", one.comment().len());
        assert!(one.matches(&one.comment()) && !one.matches(&other.comment()));
        assert!(
            Owner::is_in(&one.comment(), &one.network) && !Owner::is_in(&one.comment(), &"n".repeat(121))
        );
    }

    #[test]
    fn hashes_are_those_of_sha512sum() {
        assert_eq!(hash("test", 24), "ee26b0dd4af7e749aa1a8ee3");
    }
}

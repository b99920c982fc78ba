//! Whose a firewall element is.

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

// Together with the interface's name (at most 15 bytes) and two slashes these stay below MAX_COMMENT.
const LONGEST_NETWORK: usize = 80;
const LONGEST_CONTAINER: usize = 150;
/// No network, container or interface has this in its name: a cut name equals no whole one.
const CUT: char = '~';
const DIGITS: usize = 16;

impl Owner {
    /// The owner of `ifname` in `container`, attached to `network`.
    pub fn new(network: impl Into<String>, container: impl Into<String>, ifname: impl Into<String>) -> Owner {
        Owner { network: network.into(), container: container.into(), ifname: ifname.into() }
    }

    /// What elements of this owner say: `network/container/ifname`. Names that are too long together are cut
    /// and end in a hash of the whole.
    pub fn comment(&self) -> String {
        let Owner { network, container, ifname } = self;
        if network.len() + container.len() + ifname.len() + 2 <= MAX_COMMENT {
            return format!("{network}/{container}/{ifname}");
        }
        format!("{}/{}/{ifname}", cut(network, LONGEST_NETWORK), cut(container, LONGEST_CONTAINER))
    }

    /// The names of network and container, cut and with a hash of the whole where they are too long for a file's name.
    pub fn short_names(&self) -> (Cow<'_, str>, Cow<'_, str>) {
        (cut(&self.network, LONGEST_NETWORK), cut(&self.container, LONGEST_CONTAINER))
    }

    /// Whether an element with this comment is this owner's.
    pub fn matches(&self, comment: &str) -> bool {
        self.comment() == comment
    }

    /// Whether an element with this comment is of the same container, by whichever network and interface.
    pub fn shares_container(&self, comment: &str) -> bool {
        let rest = comment.split_once('/').and_then(|(_, rest)| rest.rsplit_once('/'));
        rest.is_some_and(|(container, _)| {
            container == self.container || container == cut(&self.container, LONGEST_CONTAINER)
        })
    }

    /// What elements say that are of all pods of a network together.
    pub fn network_comment(network: &str) -> String {
        cut(network, LONGEST_NETWORK).into_owned()
    }

    /// Whether an element with this comment belongs to someone in the network.
    pub fn is_in(comment: &str, network: &str) -> bool {
        comment.split_once('/').is_some_and(|(of, _)| of == network || of == cut(network, LONGEST_NETWORK))
    }
}

impl fmt::Display for Owner {
    /// `network/container/ifname`, never shortened.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.network, self.container, self.ifname)
    }
}

fn cut(name: &str, longest: usize) -> Cow<'_, str> {
    if name.len() <= longest {
        return Cow::Borrowed(name);
    }
    let mut end = longest - DIGITS - 1;
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    Cow::Owned(format!("{}{CUT}{}", &name[..end], hash(name, DIGITS)))
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
    fn an_owner_is_written_in_plain_words() {
        let owner = Owner::new("pods", "0a1b", "eth0");
        assert_eq!(owner.comment(), "pods/0a1b/eth0");
        assert!(owner.matches("pods/0a1b/eth0") && !owner.matches("pods/0a1b/eth1"));
        assert!(Owner::is_in("pods/0a1b/eth0", "pods") && !Owner::is_in("pods2/0a1b/eth0", "pods"));
        assert!(owner.shares_container("others/0a1b/eth1") && !owner.shares_container("pods/0a1/eth0"));
        assert!(!owner.shares_container("0a1b") && !owner.shares_container("0a1b/eth0"));
    }

    #[test]
    fn long_names_are_cut_and_still_told_apart() {
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

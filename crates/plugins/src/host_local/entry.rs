//! Address files: whose an address is.
//!
//! A network's folder has a file for each address that is taken, named after it. In it stand the container's
//! id and, since 2019, the interface's name: `<id>\r\n<ifname>`.

use std::fmt;
use std::net::IpAddr;

/// The attachment that addresses belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) container: String,
    pub(super) ifname: String,
}

impl Owner {
    pub(super) fn new(container: &str, ifname: &str) -> Owner {
        Owner { container: container.to_owned(), ifname: ifname.to_owned() }
    }

    /// What stands in the owner's address files.
    pub(super) fn content(&self) -> String {
        format!("{}\r\n{}", self.container, self.ifname)
    }
}

/// What an address file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// Nothing: whoever made the file died before writing to it, or the power failed soon after. Everybody
    /// writes under the folder's lock, so with the lock in hand nobody can be about to.
    Nobody,
    /// An interface of a container.
    Interface(Owner),
    /// A container: an entry from before 2019, whichever its interface is.
    Container(String),
    /// Nothing that a plugin writes.
    Stranger,
}

impl Holder {
    pub(super) fn parse(bytes: &[u8]) -> Holder {
        if bytes.iter().all(|byte| byte.is_ascii_whitespace() || *byte == 0) {
            return Holder::Nobody;
        }
        let word = |text: &str| !text.is_empty() && !text.contains(char::is_whitespace);
        match std::str::from_utf8(bytes).map(|text| text.trim()) {
            Err(_) => Holder::Stranger,
            Ok(text) => match text.split_once("\r\n") {
                Some((id, ifname)) if word(id) && word(ifname) => Holder::Interface(Owner::new(id, ifname)),
                None if word(text) => Holder::Container(text.to_owned()),
                _ => Holder::Stranger,
            },
        }
    }

    /// Whether the address belongs to the attachment, by its interface or by an old entry for all of them.
    pub(super) fn is(&self, owner: &Owner) -> bool {
        match self {
            Holder::Interface(holder) => holder == owner,
            Holder::Container(id) => *id == owner.container,
            Holder::Nobody | Holder::Stranger => false,
        }
    }

    /// What the index calls it.
    pub(super) fn content(&self) -> Option<String> {
        match self {
            Holder::Interface(owner) => Some(owner.content()),
            Holder::Container(id) => Some(id.clone()),
            Holder::Nobody | Holder::Stranger => None,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Nobody => f.write_str("nobody"),
            Holder::Interface(owner) => write!(f, "{} ({})", owner.container, owner.ifname),
            Holder::Container(id) => f.write_str(id),
            Holder::Stranger => f.write_str("something else"),
        }
    }
}

/// An address that is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) ip: IpAddr,
    pub(super) holder: Holder,
}

/// The address that a file is named after. Other spellings of it are not ours.
pub(super) fn address(name: &std::ffi::OsStr) -> Option<IpAddr> {
    let name = name.to_str()?;
    let ip: IpAddr = name.parse().ok()?;
    (ip.to_string() == name).then_some(ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_are_read() {
        let owner = Owner::new("c1", "eth0");
        assert_eq!(owner.content(), "c1\r\neth0");
        assert_eq!(Holder::parse(b"c1\r\neth0"), Holder::Interface(owner.clone()));
        assert_eq!(
            Holder::parse(b"c1\r\neth0\n"),
            Holder::Interface(owner.clone()),
            "someone's editor was here"
        );
        assert_eq!(Holder::parse(b"c1"), Holder::Container("c1".into()));
        assert!(Holder::parse(b"c1\n").is(&owner) && !Holder::parse(b"c1\r\neth1").is(&owner));
        assert!(!Holder::parse(b"c2").is(&owner));
    }

    #[test]
    fn what_a_crash_leaves_belongs_to_nobody() {
        for left in [&b""[..], b"\0\0\0\0", b" \r\n"] {
            assert_eq!(Holder::parse(left), Holder::Nobody);
        }
    }

    #[test]
    fn other_content_is_a_strangers() {
        for other in [&b"a b"[..], b"a\r\nb\r\nc", b"a\nb", b"\xff", b"a\r\n b"] {
            assert_eq!(Holder::parse(other), Holder::Stranger, "{other:?}");
        }
    }

    #[test]
    fn file_names_are_as_go_prints_addresses() {
        let name = |text: &str| address(text.as_ref()).map(|ip| ip.to_string());
        for good in [
            "10.1.0.2",
            "fd00::2",
            "2001:db8:0:1::1",
            "::1.2.3.4".parse::<IpAddr>().unwrap().to_string().as_str(),
        ] {
            assert_eq!(name(good).as_deref(), Some(good));
        }
        for other in ["lock", "last_reserved_ip.0", "10.1.0.02", "FD00::2", "fd00:0::2", "10.1.0.2~", ""] {
            assert_eq!(name(other), None, "{other}");
        }
        assert_eq!("::102:304".parse::<IpAddr>().unwrap().to_string(), "::102:304");
    }
}

//! Address files: who has an address.
//!
//! A network's folder has a file for each assigned address, named after the address. It holds the container's id and,
//! since 2019, the interface's name: `<id>\r\n<ifname>`.

use std::fmt;
use std::net::IpAddr;

/// The attachment that has an address. The network is the folder's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AttachmentId {
    pub(super) container: String,
    pub(super) ifname: String,
}

impl AttachmentId {
    pub(super) fn new(container: &str, ifname: &str) -> AttachmentId {
        AttachmentId { container: container.to_owned(), ifname: ifname.to_owned() }
    }

    /// The content of the attachment's address files.
    pub(super) fn content(&self) -> String {
        format!("{}\r\n{}", self.container, self.ifname)
    }
}

/// The content of an address file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// Empty: a process died before it wrote the file, or the power failed soon after. All plugins write under the
    /// folder's lock, so no process that holds the lock sees a file that is being written.
    Empty,
    /// An interface of a container.
    Interface(AttachmentId),
    /// A container: an entry from before 2019, which names no interface.
    Container(String),
    /// Content that no plugin writes.
    Unknown,
}

impl Holder {
    pub(super) fn parse(bytes: &[u8]) -> Holder {
        if bytes.iter().all(|byte| byte.is_ascii_whitespace() || *byte == 0) {
            return Holder::Empty;
        }
        let word = |text: &str| !text.is_empty() && !text.contains(char::is_whitespace);
        match std::str::from_utf8(bytes).map(|text| text.trim()) {
            Err(_) => Holder::Unknown,
            Ok(text) => match text.split_once("\r\n") {
                Some((id, ifname)) if word(id) && word(ifname) => {
                    Holder::Interface(AttachmentId::new(id, ifname))
                }
                None if word(text) => Holder::Container(text.to_owned()),
                _ => Holder::Unknown,
            },
        }
    }

    /// Whether the attachment has the address, by its interface or by an entry without an interface.
    pub(super) fn is(&self, owner: &AttachmentId) -> bool {
        match self {
            Holder::Interface(holder) => holder == owner,
            Holder::Container(id) => *id == owner.container,
            Holder::Empty | Holder::Unknown => false,
        }
    }

    /// The text that the index hashes.
    pub(super) fn content(&self) -> Option<String> {
        match self {
            Holder::Interface(owner) => Some(owner.content()),
            Holder::Container(id) => Some(id.clone()),
            Holder::Empty | Holder::Unknown => None,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Empty => f.write_str("no container"),
            Holder::Interface(owner) => write!(f, "{} ({})", owner.container, owner.ifname),
            Holder::Container(id) => f.write_str(id),
            Holder::Unknown => f.write_str("an unknown owner"),
        }
    }
}

/// An assigned address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) ip: IpAddr,
    pub(super) holder: Holder,
}

/// The address that a file is named after. Other spellings of an address are not address files.
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
        let owner = AttachmentId::new("c1", "eth0");
        assert_eq!(owner.content(), "c1\r\neth0");
        assert_eq!(Holder::parse(b"c1\r\neth0"), Holder::Interface(owner.clone()));
        assert_eq!(
            Holder::parse(b"c1\r\neth0\n"),
            Holder::Interface(owner.clone()),
            "an editor added a line feed"
        );
        assert_eq!(Holder::parse(b"c1"), Holder::Container("c1".into()));
        assert!(Holder::parse(b"c1\n").is(&owner) && !Holder::parse(b"c1\r\neth1").is(&owner));
        assert!(!Holder::parse(b"c2").is(&owner));
    }

    #[test]
    fn files_that_a_crash_left_are_empty() {
        for left in [&b""[..], b"\0\0\0\0", b" \r\n"] {
            assert_eq!(Holder::parse(left), Holder::Empty);
        }
    }

    #[test]
    fn other_content_is_unknown() {
        for other in [&b"a b"[..], b"a\r\nb\r\nc", b"a\nb", b"\xff", b"a\r\n b"] {
            assert_eq!(Holder::parse(other), Holder::Unknown, "{other:?}");
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

//! flannel's keys.

use ipnet::{Ipv4Net, Ipv6Net};

use crate::error::{Error, Result};
use crate::node::PodCidrs;

/// The keys under a prefix.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    /// flannel joins paths like file names: duplicate and trailing slashes are removed.
    pub(super) fn new(prefix: &str) -> Keys {
        let parts: Vec<&str> = prefix.split('/').filter(|part| !part.is_empty()).collect();
        let root = if prefix.starts_with('/') { "/" } else { "" };
        Keys { prefix: format!("{root}{}", parts.join("/")) }
    }

    /// The prefix.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The key of the network config.
    pub(super) fn config(&self) -> String {
        format!("{}/config", self.prefix)
    }

    /// The prefix of all nodes' keys.
    pub(super) fn subnets(&self) -> String {
        format!("{}/subnets/", self.prefix)
    }

    /// The key of a subnet. flannel's keys begin with the IPv4 subnet, so there is none for IPv6 alone.
    pub(super) fn subnet(&self, pod_cidrs: PodCidrs) -> Result<String> {
        let PodCidrs { v4: Some(v4), v6 } = pod_cidrs else {
            let why = "a subnet in etcd needs IPv4: flannel has no key for IPv6 alone; set EnableIPv4, or use the Kubernetes store";
            return Err(Error::Unreadable { object: self.subnets(), why: why.into() });
        };
        let (prefix, ip, len) = (self.subnets(), v4.addr(), v4.prefix_len());
        Ok(match v6 {
            None => format!("{prefix}{ip}-{len}"),
            Some(v6) => format!("{prefix}{ip}-{len}&{}-{}", v6.addr(), v6.prefix_len()),
        })
    }

    /// The subnet of a key, and the key's last part, which is the node's name. flannel's keys have the first address of
    /// the subnet.
    pub(super) fn parse<'k>(&self, key: &'k [u8]) -> Option<(PodCidrs, &'k str)> {
        let name = std::str::from_utf8(key).ok()?.strip_prefix(&self.subnets())?;
        let (v4, v6) = match name.split_once('&') {
            Some((v4, v6)) => (v4, Some(v6)),
            None => (name, None),
        };
        let split =
            |text: &'k str| text.rsplit_once('-').and_then(|(ip, len)| Some((ip, len.parse::<u8>().ok()?)));
        let (ip, len) = split(v4)?;
        let v4 = Ipv4Net::new(ip.parse().ok()?, len).ok().filter(|net| net.addr() == net.network())?;
        let v6 = match v6 {
            Some(text) => {
                let (ip, len) = split(text)?;
                Some(Ipv6Net::new(ip.parse().ok()?, len).ok().filter(|net| net.addr() == net.network())?)
            }
            None => None,
        };
        Some((PodCidrs { v4: Some(v4), v6 }, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_flannels() {
        let keys = Keys::new("/coreos.com/network");
        assert_eq!(keys.config(), "/coreos.com/network/config");
        let v4 = PodCidrs { v4: "10.5.34.0/24".parse().ok(), v6: None };
        assert_eq!(keys.subnet(v4).unwrap(), "/coreos.com/network/subnets/10.5.34.0-24");
        let both = PodCidrs { v6: "fd00:0:0:7::/64".parse().ok(), ..v4 };
        let key = keys.subnet(both).unwrap();
        assert_eq!(key, "/coreos.com/network/subnets/10.5.34.0-24&fd00:0:0:7::-64");
        assert_eq!(keys.parse(key.as_bytes()), Some((both, "10.5.34.0-24&fd00:0:0:7::-64")));
        let error = keys.subnet(PodCidrs { v4: None, ..both }).unwrap_err().to_string();
        assert!(error.contains("needs IPv4"), "{error}");
    }

    #[test]
    fn prefixes_are_joined_as_paths() {
        assert_eq!(Keys::new("/a//b/").config(), "/a/b/config");
        assert_eq!(Keys::new("a").config(), "a/config");
    }

    #[test]
    fn other_keys_are_not_nodes() {
        let keys = Keys::new("/net");
        for key in [
            "/net/subnets/",
            "/net/subnets/10.0.0.0",
            "/net/subnets/10.0.0.0-33",
            "/net/subnets/10.0.0.7-24",
            "/net/subnets/10.0.0.0-24&fd00::7-64",
            "/net/subnets/10.0.0-24",
            "/net/subnets/10.0.0.0-24&x-64",
            "/net/subnets/10.0.0.0-24&fd00::",
            "/net/subnets/x/10.0.0.0-24",
            "/net/config",
            "/other/subnets/10.0.0.0-24",
            "/net/subnets/-",
            "/net/subnets/é-24",
        ] {
            assert_eq!(keys.parse(key.as_bytes()), None, "{key}");
        }
        assert_eq!(keys.parse(b"/net/subnets/\xff"), None);
    }
}

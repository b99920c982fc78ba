//! /run/flannel/subnet.env: what this node's part of the network is, for the flannel CNI plugin and for docker's options.
//!
//! It is written last, when the roads are open: the plugin refuses pods until it is there. And it is the memory over a
//! restart: a node that asks again asks for the range that it had, because its pods have addresses of it.

use std::fmt::Write as _;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use ipnet::{Ipv4Net, Ipv6Net};

use crate::{Error, NetConf, PodCidrs, Result};

/// The file's content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubnetEnv {
    /// All pods' IPv4 addresses, and this node's.
    pub v4: Option<(Ipv4Net, Ipv4Net)>,
    /// All pods' IPv6 addresses, and this node's.
    pub v6: Option<(Ipv6Net, Ipv6Net)>,
    /// What a pod's packet may have.
    pub mtu: u32,
    /// Whether the agent masquerades what leaves the network; if not, the plugin does.
    pub masquerades: bool,
}

impl SubnetEnv {
    /// What a node with these pod_cidrs writes.
    pub fn new(conf: &NetConf, pod_cidrs: PodCidrs, mtu: u32, masquerades: bool) -> SubnetEnv {
        let v4 = conf.network.zip(pod_cidrs.v4).filter(|_| conf.enable_ipv4);
        let v6 = conf.ipv6_network.zip(pod_cidrs.v6).filter(|_| conf.enable_ipv6);
        SubnetEnv { v4, v6, mtu, masquerades }
    }

    /// The text, byte for byte flannel's. A subnet is written with its first usable address, which the bridge gets.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if let Some((network, subnet)) = self.v4 {
            let first = u32::from(subnet.network()).wrapping_add(1);
            let (first, len) = (std::net::Ipv4Addr::from(first), subnet.prefix_len());
            let _ = write!(text, "FLANNEL_NETWORK={network}\nFLANNEL_SUBNET={first}/{len}\n");
        }
        if let Some((network, subnet)) = self.v6 {
            let first = u128::from(subnet.network()).wrapping_add(1);
            let (first, len) = (std::net::Ipv6Addr::from(first), subnet.prefix_len());
            let _ = write!(text, "FLANNEL_IPV6_NETWORK={network}\nFLANNEL_IPV6_SUBNET={first}/{len}\n");
        }
        let _ = write!(text, "FLANNEL_MTU={}\nFLANNEL_IPMASQ={}\n", self.mtu, self.masquerades);
        text
    }

    /// Writes the file in one step: who reads it sees the old one or the new one, whole. Readable by everybody, whatever the
    /// umask. Nothing is written if it is there already: its time tells when the range was last another.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = self.text();
        if fs::read_to_string(path).is_ok_and(|there| there == text) {
            return Ok(());
        }
        let folder = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let new = folder.join(format!(".{name}.{}", std::process::id()));
        let made = (|| {
            let mut file =
                fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&new)?;
            file.set_permissions(fs::Permissions::from_mode(0o644))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, path)
        })();
        made.map_err(|source| {
            let _ = fs::remove_file(&new);
            Error::File { doing: "write", path: path.into(), source }
        })
    }

    /// Reads the file; `None` if it is not there. What makes no sense in it is left out, as flannel does: it is a memory, and
    /// a bad one is none.
    pub fn read(path: &Path) -> Result<Option<SubnetEnv>> {
        match fs::read(path) {
            Ok(bytes) => Ok(Some(SubnetEnv::parse(&String::from_utf8_lossy(&bytes)))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::file("read", path)(error)),
        }
    }

    /// The pod_cidrs that this node had, if the file remembers any.
    pub fn pod_cidrs(&self) -> PodCidrs {
        PodCidrs { v4: self.v4.map(|(_, subnet)| subnet), v6: self.v6.map(|(_, subnet)| subnet) }
    }

    fn parse(text: &str) -> SubnetEnv {
        let value = |key: &str| {
            let lines = text.lines().filter_map(|line| {
                let line = line.trim();
                line.strip_prefix("export ").unwrap_or(line).split_once('=')
            });
            let mut values = lines.filter(|(name, _)| name.trim() == key);
            values.next_back().map(|(_, value)| value.trim().trim_matches(['"', '\'']))
        };
        // Where several networks are listed, none is *the* one that this node's subnet was of: flannel forgets it, too.
        let v4 = |key: &str| value(key).and_then(|text| text.parse::<Ipv4Net>().ok()).map(|net| net.trunc());
        let v6 = |key: &str| value(key).and_then(|text| text.parse::<Ipv6Net>().ok()).map(|net| net.trunc());
        SubnetEnv {
            v4: v4("FLANNEL_NETWORK").zip(v4("FLANNEL_SUBNET")),
            v6: v6("FLANNEL_IPV6_NETWORK").zip(v6("FLANNEL_IPV6_SUBNET")),
            mtu: value("FLANNEL_MTU").and_then(|text| text.parse().ok()).unwrap_or_default(),
            masquerades: value("FLANNEL_IPMASQ") == Some("true"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: &str = "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.0.1/24\n\
        FLANNEL_IPV6_NETWORK=2001:cafe:42::/56\nFLANNEL_IPV6_SUBNET=2001:cafe:42::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

    fn both() -> SubnetEnv {
        SubnetEnv {
            v4: Some(("10.42.0.0/16".parse().unwrap(), "10.42.0.0/24".parse().unwrap())),
            v6: Some(("2001:cafe:42::/56".parse().unwrap(), "2001:cafe:42::/64".parse().unwrap())),
            mtu: 1450,
            masquerades: true,
        }
    }

    #[test]
    fn the_bytes_are_flannels() {
        assert_eq!(both().text(), BOTH);
        let v4 = SubnetEnv { v6: None, masquerades: false, mtu: 1500, ..both() };
        let text = "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.0.1/24\nFLANNEL_MTU=1500\nFLANNEL_IPMASQ=false\n";
        assert_eq!(v4.text(), text);
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = std::env::temp_dir().join(format!("podwire-subnet-env-{}", std::process::id()));
        let path = folder.join("run/flannel/subnet.env");
        assert_eq!(SubnetEnv::read(&path).unwrap(), None);
        both().write(&path).unwrap();
        assert_eq!(SubnetEnv::read(&path).unwrap(), Some(both()));
        assert_eq!(fs::read_to_string(&path).unwrap(), BOTH);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no temporary file stays");
        let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
        let before = inode(&path);
        both().write(&path).unwrap();
        assert_eq!(inode(&path), before, "the same again is not written");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_edited_by_hand_is_understood_and_nonsense_forgotten() {
        let text = "# mine\nexport FLANNEL_NETWORK=\"10.42.0.0/16\"\r\n FLANNEL_SUBNET = '10.42.7.1/24'\nFLANNEL_IPV6_SUBNET=x\n";
        assert_eq!(SubnetEnv::parse(text).pod_cidrs().v4.unwrap().to_string(), "10.42.7.0/24");
        assert_eq!(SubnetEnv::parse(text).pod_cidrs().v6, None);
        assert_eq!(SubnetEnv::parse("\0=\nFLANNEL_MTU=-3"), SubnetEnv::default());
        let several = BOTH.replace("10.42.0.0/16", "10.42.0.0/16,10.43.0.0/16");
        assert_eq!(SubnetEnv::parse(&several).pod_cidrs().v4, None);
    }
}

//! /run/flannel/subnet.env: this node's part of the network, for the flannel CNI plugin and for docker's options.
//!
//! The agent writes it after all routes are installed: the plugin refuses pods until it exists. After a restart, the
//! agent reads its previous pod CIDRs from it, because running pods have addresses of them.

use std::fmt::Write as _;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use ipnet::{Ipv4Net, Ipv6Net};

use podwire_fs::FileError;

use crate::error::Result;
use crate::netconf::NetConf;
use crate::node::PodCidrs;

/// The file's content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubnetEnv {
    /// The IPv4 network of all pods, and this node's subnet.
    pub v4: Option<(Ipv4Net, Ipv4Net)>,
    /// The IPv6 network of all pods, and this node's subnet.
    pub v6: Option<(Ipv6Net, Ipv6Net)>,
    /// The MTU of pods.
    pub mtu: u32,
    /// Whether the agent masquerades traffic that leaves the network. If not, the plugin does.
    pub masquerades: bool,
}

impl SubnetEnv {
    /// The content for a node with these pod CIDRs.
    pub fn new(conf: &NetConf, pod_cidrs: PodCidrs, mtu: u32, masquerades: bool) -> SubnetEnv {
        let v4 = conf.network.zip(pod_cidrs.v4).filter(|_| conf.enable_ipv4);
        let v6 = conf.ipv6_network.zip(pod_cidrs.v6).filter(|_| conf.enable_ipv6);
        SubnetEnv { v4, v6, mtu, masquerades }
    }

    /// The text, byte for byte as flannel writes it. A subnet is written with its first usable address, which the
    /// bridge gets.
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

    /// Replaces the file atomically. A file with the same content is not written, so that its time shows the last
    /// change.
    ///
    /// Unlike `podwire_fs::replace`, this sets mode 0644 whatever the umask is, and flushes the file to disk.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = self.text();
        if fs::read_to_string(path).is_ok_and(|there| there == text) {
            return Ok(());
        }
        let dir = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(dir).map_err(FileError::at("create", dir))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let new = dir.join(format!(".{name}.{}", std::process::id()));
        let written = (|| {
            let mut file =
                fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&new)?;
            file.set_permissions(fs::Permissions::from_mode(0o644))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, path)
        })();
        written.map_err(|error| {
            let _ = fs::remove_file(&new);
            FileError::at("write", path)(error).into()
        })
    }

    /// Reads the file; `None` if it does not exist. Invalid values are ignored, as in flannel.
    pub fn read(path: &Path) -> Result<Option<SubnetEnv>> {
        match fs::read(path) {
            Ok(bytes) => Ok(Some(SubnetEnv::parse(&String::from_utf8_lossy(&bytes)))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(FileError::at("read", path)(error).into()),
        }
    }

    /// The previous pod CIDRs of this node.
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
        // A list of several networks is ignored, as in flannel: the network of this node's subnet is unknown then.
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
        let dir = std::env::temp_dir().join(format!("podwire-subnet-env-{}", std::process::id()));
        let path = dir.join("run/flannel/subnet.env");
        assert_eq!(SubnetEnv::read(&path).unwrap(), None);
        both().write(&path).unwrap();
        assert_eq!(SubnetEnv::read(&path).unwrap(), Some(both()));
        assert_eq!(fs::read_to_string(&path).unwrap(), BOTH);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no temporary file is left");
        let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
        let before = inode(&path);
        both().write(&path).unwrap();
        assert_eq!(inode(&path), before, "the same again is not written");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_file_edited_by_hand_is_parsed_and_invalid_values_are_ignored() {
        let text = "# mine\nexport FLANNEL_NETWORK=\"10.42.0.0/16\"\r\n FLANNEL_SUBNET = '10.42.7.1/24'\nFLANNEL_IPV6_SUBNET=x\n";
        assert_eq!(SubnetEnv::parse(text).pod_cidrs().v4.unwrap().to_string(), "10.42.7.0/24");
        assert_eq!(SubnetEnv::parse(text).pod_cidrs().v6, None);
        assert_eq!(SubnetEnv::parse("\0=\nFLANNEL_MTU=-3"), SubnetEnv::default());
        let several = BOTH.replace("10.42.0.0/16", "10.42.0.0/16,10.43.0.0/16");
        assert_eq!(SubnetEnv::parse(&several).pod_cidrs().v4, None);
    }
}

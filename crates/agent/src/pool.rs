//! How many of the node's addresses pods have: host-local keeps a file for each, named after it, in a folder for each network.
//! They are counted when somebody asks for the numbers: a node's range has a few hundred.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;

/// host-local's folder.
#[derive(Clone, Debug)]
pub(crate) struct Pool(pub PathBuf);

impl Pool {
    /// The addresses of `ranges` that are taken, in whatever network. Who uses another IPAM plugin has none here.
    pub fn taken(&self, ranges: &[String]) -> usize {
        let ranges: Vec<IpNet> = ranges.iter().filter_map(|range| range.parse().ok()).collect();
        let networks = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let files = networks.filter_map(|network| fs::read_dir(network.path()).ok()).flatten().flatten();
        let address = |file: fs::DirEntry| -> Option<IpAddr> { file.file_name().to_str()?.parse().ok() };
        files.filter_map(address).filter(|ip| ranges.iter().any(|range| range.contains(ip))).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_this_nodes_ranges_count() {
        let folder = std::env::temp_dir().join(format!("podwire-pool-{}", std::process::id()));
        for (network, file) in [
            ("cbr0", "10.244.7.2"),
            ("cbr0", "10.244.7.3"),
            ("cbr0", "10.244.8.2"),
            ("cbr0", "fd00::7:2"),
            ("cbr0", "lock"),
            ("cbr0", "last_reserved_ip.0"),
            ("other", "10.244.7.9"),
        ] {
            fs::create_dir_all(folder.join(network)).unwrap();
            fs::write(folder.join(network).join(file), "").unwrap();
        }
        let pool = Pool(folder.clone());
        assert_eq!(pool.taken(&["10.244.7.0/24".into(), "fd00::/64".into()]), 4);
        assert_eq!(pool.taken(&[]), 0);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(pool.taken(&["10.244.7.0/24".into()]), 0, "a folder that is not there holds nothing");
    }
}

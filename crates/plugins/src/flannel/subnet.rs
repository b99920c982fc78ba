//! `subnet.env`, into which flanneld writes the node's subnet.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use ipnet::IpNet;
use podwire_cni_spec::{addr, code, Error};
use podwire_ip::IpFamily;

/// The prefix of every error about the file, and the hint.
const FAILED: &str = "failed to load flannel 'subnet.env' file";
const HINT: &str = "is flanneld running? It writes this file when the node has a subnet";

/// The node's subnet and the whole network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Subnet {
    /// The whole network, which pods reach through the node.
    pub(super) networks: Vec<IpNet>,
    /// The node's subnets: at most one of each family, IPv4 first.
    pub(super) subnets: Vec<IpNet>,
    /// The pods' MTU: the underlay's, less flannel's encapsulation.
    pub(super) mtu: u32,
    /// Whether flanneld masquerades traffic that leaves the network.
    pub(super) masquerades: bool,
}

impl Subnet {
    /// Reads and checks the file.
    pub(super) fn read(path: &Path) -> Result<Subnet, Error> {
        let failed = |code: u32, why: String| Error::new(code, format!("{FAILED}: {why}")).with_details(HINT);
        let text = fs::read(path).map_err(|error| match error.kind() {
            // flanneld may still be starting: a later attempt may succeed.
            ErrorKind::NotFound => {
                failed(code::TRY_AGAIN, format!("open {}: no such file or directory", path.display()))
            }
            _ => failed(code::IO, format!("read {}: {error}", path.display())),
        })?;
        Subnet::parse(&String::from_utf8_lossy(&text))
            .map_err(|why| failed(code::INVALID_CONFIG, format!("{} {why}", path.display())))
    }

    fn parse(text: &str) -> Result<Subnet, String> {
        let [mut networks, mut networks6]: [Vec<IpNet>; 2] = Default::default();
        let (mut subnet, mut subnet6, mut mtu, mut masquerades) = (None, None, None, None);
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            let wrong = |why: &str| format!("says {key}={value}: {why}");
            let nets = |family: IpFamily| nets(value, family).map_err(|why| wrong(&why));
            match key.trim() {
                "FLANNEL_NETWORK" => networks = nets(IpFamily::V4)?,
                "FLANNEL_IPV6_NETWORK" => networks6 = nets(IpFamily::V6)?,
                "FLANNEL_SUBNET" => subnet = nets(IpFamily::V4)?.pop(),
                "FLANNEL_IPV6_SUBNET" => subnet6 = nets(IpFamily::V6)?.pop(),
                "FLANNEL_MTU" => {
                    mtu = Some(value.trim().parse::<u32>().map_err(|error| wrong(&error.to_string()))?);
                }
                "FLANNEL_IPMASQ" => masquerades = Some(value.trim() == "true"),
                _ => {}
            }
        }
        networks.append(&mut networks6);
        let subnets: Vec<IpNet> = subnet.into_iter().chain(subnet6).collect();
        let missing = [
            ("FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK", networks.is_empty()),
            ("FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET", subnets.is_empty()),
            ("FLANNEL_MTU", mtu.is_none()),
            ("FLANNEL_IPMASQ", masquerades.is_none()),
        ];
        match (mtu, masquerades) {
            (Some(mtu), Some(masquerades)) if !missing.iter().any(|(_, missing)| *missing) => {
                Ok(Subnet { networks, subnets, mtu, masquerades })
            }
            _ => {
                let names: Vec<&str> =
                    missing.iter().filter(|(_, missing)| *missing).map(|(names, _)| *names).collect();
                Err(format!("is missing {}", names.join(", ")))
            }
        }
    }
}

/// The networks of a list, each once. flanneld writes its own address with the subnet's prefix, so host bits are
/// cleared.
fn nets(list: &str, family: IpFamily) -> Result<Vec<IpNet>, String> {
    let mut nets = Vec::new();
    for text in list.split(',').map(str::trim) {
        let net = addr::parse_net(text).map_err(|error| error.msg)?.trunc();
        if IpFamily::of_net(net) != family {
            return Err(format!("{net} is not an {family} network"));
        }
        if !nets.contains(&net) {
            nets.push(net);
        }
    }
    Ok(nets)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: &str =
        "FLANNEL_NETWORK=10.244.0.0/16,10.245.0.0/16,10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n\
        FLANNEL_IPV6_NETWORK=fd00:244::/48\nFLANNEL_IPV6_SUBNET=fd00:244:0:1::1/64\nFLANNEL_MTU=1450\n\
        FLANNEL_IPMASQ=true\n";

    fn texts(nets: &[IpNet]) -> Vec<String> {
        nets.iter().map(IpNet::to_string).collect()
    }

    #[test]
    fn both_families_and_several_networks() {
        let subnet = Subnet::parse(BOTH).unwrap();
        assert_eq!(texts(&subnet.networks), ["10.244.0.0/16", "10.245.0.0/16", "fd00:244::/48"]);
        assert_eq!(texts(&subnet.subnets), ["10.244.1.0/24", "fd00:244:0:1::/64"]);
        assert_eq!((subnet.mtu, subnet.masquerades), (1450, true));
    }

    #[test]
    fn one_family_is_enough() {
        let only = |family: &str| {
            let lines = BOTH.lines().filter(|line| {
                let of_v6 = line.contains("IPV6");
                line.contains("MTU") || line.contains("IPMASQ") || of_v6 == (family == "v6")
            });
            Subnet::parse(&lines.collect::<Vec<_>>().join("\r\n")).unwrap()
        };
        assert_eq!(texts(&only("v4").subnets), ["10.244.1.0/24"]);
        assert_eq!(texts(&only("v6").subnets), ["fd00:244:0:1::/64"]);
        assert_eq!(texts(&only("v6").networks), ["fd00:244::/48"]);
    }

    #[test]
    fn missing_keys_are_named() {
        let error = Subnet::parse("FLANNEL_SUBNET=10.244.1.1/24\n# a comment\nFLANNEL_IPMASQ=false\n");
        assert_eq!(error.unwrap_err(), "is missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_MTU");
        let error = Subnet::read(Path::new("/nowhere/subnet.env")).unwrap_err();
        assert_eq!(error.code, code::TRY_AGAIN);
        assert_eq!(
            error.msg,
            "failed to load flannel 'subnet.env' file: open /nowhere/subnet.env: no such file or directory"
        );
        assert!(error.details.contains("is flanneld running?"));
    }

    #[test]
    fn invalid_values_are_quoted() {
        for (line, words) in [
            ("FLANNEL_MTU=large", "FLANNEL_MTU=large: invalid digit"),
            ("FLANNEL_MTU=-1", "FLANNEL_MTU=-1: invalid digit"),
            ("FLANNEL_SUBNET=10.244.1.1", "FLANNEL_SUBNET=10.244.1.1: invalid CIDR address"),
            ("FLANNEL_NETWORK=", "FLANNEL_NETWORK=: invalid CIDR address"),
            ("FLANNEL_NETWORK=10.0.0.0/8,", "FLANNEL_NETWORK=10.0.0.0/8,: invalid CIDR address"),
            ("FLANNEL_IPV6_SUBNET=10.0.0.0/8", "10.0.0.0/8 is not an IPv6 network"),
        ] {
            let error = Subnet::parse(&format!("{BOTH}{line}\n")).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}

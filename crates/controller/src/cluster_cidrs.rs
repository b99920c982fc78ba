//! The cluster networks, parsed from flags. Everything that kube-controller-manager accepts is accepted and means the
//! same. Flags that cannot work are rejected at start.

use ipnet::IpNet;
use podwire_ip::IpFamily;
use podwire_ipam::NodeCidrs;

use crate::{Error, Result};

/// The prefix lengths of node CIDRs, as flags give them.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeCidrMasks {
    /// For a single-stack cluster (`--node-cidr-mask-size`).
    pub either: Option<u8>,
    /// For IPv4.
    pub v4: Option<u8>,
    /// For IPv6.
    pub v6: Option<u8>,
}

/// The networks from which nodes get their pod CIDRs.
#[derive(Clone, Debug)]
pub struct ClusterCidrs {
    /// The cluster networks in the order of `spec.podCIDRs`, each with the prefix length of a node CIDR.
    networks: Vec<(IpNet, u8)>,
    /// The service ranges. No node gets any of them.
    services: Vec<IpNet>,
}

const CLUSTER: &str = "--cluster-cidr";
const SERVICE: &str = "--service-cluster-ip-range";

impl ClusterCidrs {
    /// Parses comma-separated lists as kube-controller-manager does.
    pub fn new(cluster: &str, masks: NodeCidrMasks, services: &str) -> Result<ClusterCidrs> {
        let networks = parse(CLUSTER, cluster)?;
        if networks.is_empty() {
            let why = "a cluster network is required, such as 10.244.0.0/16, or one of each family: 10.244.0.0/16,fd00:244::/48";
            return Err(Error::Flag { flag: CLUSTER, why: why.into() });
        }
        check_one_of_each_family(CLUSTER, &networks)?;
        let services = parse(SERVICE, services)?;
        check_one_of_each_family(SERVICE, &services)?;
        let networks = masks.apply(&networks)?;
        for (network, _) in &networks {
            if let Some(services) = services.iter().find(|services| services.contains(network)) {
                let why = format!("{services} covers the whole cluster network {network}, so that no node could get a CIDR; use different networks");
                return Err(Error::Flag { flag: SERVICE, why });
            }
        }
        let cidrs = ClusterCidrs { networks, services };
        cidrs.node_cidrs()?;
        Ok(cidrs)
    }

    /// The allocator, with everything free.
    pub(crate) fn node_cidrs(&self) -> Result<NodeCidrs> {
        let created = NodeCidrs::new(&self.networks, &self.services);
        created.map_err(|error| Error::Flag { flag: CLUSTER, why: error.to_string() })
    }

    /// The pairs of a cluster network and a service range inside it: allowed, but rarely intended.
    pub(crate) fn service_overlaps(&self) -> impl Iterator<Item = (IpNet, IpNet)> + '_ {
        let pairs = self
            .networks
            .iter()
            .flat_map(|(network, _)| self.services.iter().map(|range| (*network, *range)));
        pairs.filter(|(network, services)| network.contains(services))
    }
}

impl NodeCidrMasks {
    /// Each network with the prefix length of its node CIDRs.
    fn apply(&self, networks: &[IpNet]) -> Result<Vec<(IpNet, u8)>> {
        let has = |family: IpFamily| networks.iter().any(|network| IpFamily::of_net(*network) == family);
        let rejected = |flag, why: &str| Err(Error::Flag { flag, why: why.into() });
        if self.either.is_some() && networks.len() > 1 {
            return rejected("--node-cidr-mask-size", "usage of --node-cidr-mask-size is not allowed with dual-stack clusters: use --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6");
        }
        if self.either.is_some() && (self.v4.is_some() || self.v6.is_some()) {
            return rejected("--node-cidr-mask-size", "it cannot be combined with --node-cidr-mask-size-ipv4 or --node-cidr-mask-size-ipv6: remove it");
        }
        if self.v4.is_some() && !has(IpFamily::V4) {
            return rejected(
                "--node-cidr-mask-size-ipv4",
                "usage of --node-cidr-mask-size-ipv4 is not allowed for a single-stack IPv6 cluster",
            );
        }
        if self.v6.is_some() && !has(IpFamily::V6) {
            return rejected(
                "--node-cidr-mask-size-ipv6",
                "usage of --node-cidr-mask-size-ipv6 is not allowed for a single-stack IPv4 cluster",
            );
        }
        networks.iter().map(|network| self.length(*network).map(|len| (*network, len))).collect()
    }

    fn length(&self, network: IpNet) -> Result<u8> {
        let (flag, given, default) = match network {
            IpNet::V4(_) => ("--node-cidr-mask-size-ipv4", self.v4, NodeCidrs::DEFAULT_LEN_V4),
            IpNet::V6(_) => ("--node-cidr-mask-size-ipv6", self.v6, NodeCidrs::DEFAULT_LEN_V6),
        };
        let flag = if self.either.is_some() { "--node-cidr-mask-size" } else { flag };
        let len = self.either.or(given).unwrap_or(default);
        let (least, most) = (network.prefix_len(), network.max_prefix_len());
        if len < least {
            let why = format!("a node CIDR of /{len} is larger than the cluster network {network}: mask size of cluster CIDR must be less than or equal to it; use {least} to {most}");
            return Err(Error::Flag { flag, why });
        }
        if len > most {
            let why = format!("/{len} is too long for {network}: use {least} to {most}");
            return Err(Error::Flag { flag, why });
        }
        Ok(len)
    }
}

fn parse(flag: &'static str, list: &str) -> Result<Vec<IpNet>> {
    let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
    let network = |word: &str| {
        let network: IpNet = word.parse().map_err(|_| Error::Flag {
            flag,
            why: format!("{word:?} is not a CIDR: write one such as 10.244.0.0/16 or fd00:244::/48"),
        })?;
        if network != network.trunc() {
            let why = format!("{network} has host bits set: write {}", network.trunc());
            return Err(Error::Flag { flag, why });
        }
        Ok(network)
    };
    words.map(network).collect()
}

fn check_one_of_each_family(flag: &'static str, networks: &[IpNet]) -> Result<()> {
    for family in [IpFamily::V4, IpFamily::V6] {
        let count = networks.iter().filter(|network| IpFamily::of_net(**network) == family).count();
        if count > 1 {
            let all: Vec<String> = networks.iter().map(IpNet::to_string).collect();
            let why = format!(
                "{} has {count} {} networks: at most one of each family is possible",
                all.join(","),
                family.name()
            );
            return Err(Error::Flag { flag, why });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(cluster: &str, masks: NodeCidrMasks, services: &str) -> Result<Vec<u8>, String> {
        let networks = ClusterCidrs::new(cluster, masks, services).map_err(|error| error.to_string())?;
        Ok(networks.networks.into_iter().map(|(_, len)| len).collect())
    }

    fn masks(either: u8, v4: u8, v6: u8) -> NodeCidrMasks {
        let some = |len| (len > 0).then_some(len);
        NodeCidrMasks { either: some(either), v4: some(v4), v6: some(v6) }
    }

    #[test]
    fn masks_mean_the_same_as_in_kube_controller_manager() {
        let (v4, v6, both) = ("10.244.0.0/16", "fd00:244::/48", "fd00:244::/48, 10.244.0.0/16");
        assert_eq!(lengths(v4, masks(0, 0, 0), ""), Ok(vec![24]));
        assert_eq!(lengths(v6, masks(0, 0, 0), ""), Ok(vec![64]));
        assert_eq!(lengths(both, masks(0, 0, 0), ""), Ok(vec![64, 24]), "in the order of the flag");
        assert_eq!(lengths(v4, masks(20, 0, 0), ""), Ok(vec![20]));
        assert_eq!(lengths(v6, masks(56, 0, 0), ""), Ok(vec![56]));
        assert_eq!(lengths(v4, masks(0, 26, 0), ""), Ok(vec![26]));
        assert_eq!(
            lengths(both, masks(0, 26, 112), ""),
            Ok(vec![112, 26]),
            "no bitmap, so no limit to 16 bits"
        );
        assert_eq!(lengths(v4, masks(16, 0, 0), ""), Ok(vec![16]), "one node has the whole network");
    }

    #[test]
    fn invalid_flags_are_rejected() {
        let (v4, v6, both) = ("10.244.0.0/16", "fd00:244::/48", "10.244.0.0/16,fd00:244::/48");
        for (cluster, masks, services, text) in [
            ("", masks(0, 0, 0), "", "--cluster-cidr: a cluster network is required"),
            ("10.244.0.0", masks(0, 0, 0), "", "--cluster-cidr: \"10.244.0.0\" is not a CIDR"),
            (
                "10.244.0.1/16",
                masks(0, 0, 0),
                "",
                "--cluster-cidr: 10.244.0.1/16 has host bits set: write 10.244.0.0/16",
            ),
            (
                "10.1.0.0/16,10.2.0.0/16",
                masks(0, 0, 0),
                "",
                "--cluster-cidr: 10.1.0.0/16,10.2.0.0/16 has 2 IPv4 networks",
            ),
            ("10.1.0.0/16,fd00::/48,fd01::/48", masks(0, 0, 0), "", "has 2 IPv6 networks"),
            (
                both,
                masks(24, 0, 0),
                "",
                "usage of --node-cidr-mask-size is not allowed with dual-stack clusters",
            ),
            (v4, masks(24, 24, 0), "", "--node-cidr-mask-size: it cannot be combined"),
            (
                v6,
                masks(0, 24, 0),
                "",
                "usage of --node-cidr-mask-size-ipv4 is not allowed for a single-stack IPv6",
            ),
            (
                v4,
                masks(0, 0, 64),
                "",
                "usage of --node-cidr-mask-size-ipv6 is not allowed for a single-stack IPv4",
            ),
            (
                v4,
                masks(8, 0, 0),
                "",
                "--node-cidr-mask-size: a node CIDR of /8 is larger than the cluster network 10.244.0.0/16",
            ),
            (
                v4,
                masks(0, 33, 0),
                "",
                "--node-cidr-mask-size-ipv4: /33 is too long for 10.244.0.0/16: use 16 to 32",
            ),
            (v6, masks(32, 0, 0), "", "a node CIDR of /32 is larger"),
            (
                v4,
                masks(0, 0, 0),
                "10.0.0.0/8",
                "--service-cluster-ip-range: 10.0.0.0/8 covers the whole cluster network",
            ),
            (
                v4,
                masks(0, 0, 0),
                "10.96.0.0/12,10.112.0.0/12",
                "--service-cluster-ip-range: 10.96.0.0/12,10.112.0.0/12 has 2 IPv4 networks",
            ),
            (v4, masks(0, 0, 0), "services", "--service-cluster-ip-range: \"services\" is not a CIDR"),
        ] {
            let error = lengths(cluster, masks, services).unwrap_err();
            assert!(error.contains(text), "{error:?} should have {text:?}");
        }
    }

    #[test]
    fn services_within_the_cluster_network_are_excluded() {
        let networks = ClusterCidrs::new("10.0.0.0/8", masks(0, 0, 0), "10.0.0.0/12").unwrap();
        assert_eq!(networks.service_overlaps().count(), 1);
        let given = networks.node_cidrs().unwrap().assign("a").unwrap();
        assert_eq!(given, ["10.16.0.0/24".parse().unwrap()]);
    }
}

//! The cluster's networks, from the words of the command line: what kube-controller-manager accepts is accepted and means the
//! same, and what cannot work is refused before anything is done.

use ipnet::IpNet;
use podwire_ipam::NodeCidrs;

use crate::{Error, Result};

/// The lengths of nodes' ranges, as they were asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeCidrMasks {
    /// For a cluster of one family.
    pub either: Option<u8>,
    /// For IPv4.
    pub v4: Option<u8>,
    /// For IPv6.
    pub v6: Option<u8>,
}

/// What nodes' ranges are cut from.
#[derive(Clone, Debug)]
pub struct ClusterCidrs {
    /// Cluster networks in the order of `spec.podCIDRs`, each with the length of a node's range.
    pub(crate) cluster: Vec<(IpNet, u8)>,
    /// What no node gets.
    pub(crate) kept_out: Vec<IpNet>,
}

const CLUSTER: &str = "--cluster-cidr";
const SERVICE: &str = "--service-cluster-ip-range";

impl ClusterCidrs {
    /// `cluster` and `services` are lists with commas, as kube-controller-manager has them.
    pub fn new(cluster: &str, masks: NodeCidrMasks, services: &str) -> Result<ClusterCidrs> {
        let cluster = parse(CLUSTER, cluster)?;
        if cluster.is_empty() {
            let why = "the cluster's network is needed, like 10.244.0.0/16, or one of each family: 10.244.0.0/16,fd00:244::/48";
            return Err(Error::Flag { flag: CLUSTER, why: why.into() });
        }
        one_of_each_family(CLUSTER, &cluster)?;
        let kept_out = parse(SERVICE, services)?;
        one_of_each_family(SERVICE, &kept_out)?;
        let cluster = masks.of(&cluster)?;
        for (network, _) in &cluster {
            if let Some(services) = kept_out.iter().find(|services| services.contains(network)) {
                let why = format!("{services} covers all of the cluster's network {network}: no node could get a range; they must be different networks");
                return Err(Error::Flag { flag: SERVICE, why });
            }
        }
        let networks = ClusterCidrs { cluster, kept_out };
        networks.ranges()?;
        Ok(networks)
    }

    /// All of it free.
    pub(crate) fn ranges(&self) -> Result<NodeCidrs> {
        let made = NodeCidrs::new(&self.cluster, &self.kept_out);
        made.map_err(|error| Error::Flag { flag: CLUSTER, why: error.to_string() })
    }

    /// Parts of the cluster's networks that are the services': allowed, but seldom meant.
    pub(crate) fn overlaps(&self) -> impl Iterator<Item = (IpNet, IpNet)> + '_ {
        let pairs =
            self.cluster.iter().flat_map(|(network, _)| self.kept_out.iter().map(|kept| (*network, *kept)));
        pairs.filter(|(network, kept)| network.contains(kept))
    }
}

impl NodeCidrMasks {
    /// With each network the length of a node's range.
    fn of(&self, networks: &[IpNet]) -> Result<Vec<(IpNet, u8)>> {
        let has = |v4: bool| networks.iter().any(|network| network.addr().is_ipv4() == v4);
        let refused = |flag, why: &str| Err(Error::Flag { flag, why: why.into() });
        if self.either.is_some() && networks.len() > 1 {
            return refused("--node-cidr-mask-size", "usage of --node-cidr-mask-size is not allowed with dual-stack clusters: write --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6");
        }
        if self.either.is_some() && (self.v4.is_some() || self.v6.is_some()) {
            return refused("--node-cidr-mask-size", "it cannot be told together with --node-cidr-mask-size-ipv4 or --node-cidr-mask-size-ipv6: leave it out");
        }
        if self.v4.is_some() && !has(true) {
            return refused(
                "--node-cidr-mask-size-ipv4",
                "usage of --node-cidr-mask-size-ipv4 is not allowed for a single-stack IPv6 cluster",
            );
        }
        if self.v6.is_some() && !has(false) {
            return refused(
                "--node-cidr-mask-size-ipv6",
                "usage of --node-cidr-mask-size-ipv6 is not allowed for a single-stack IPv4 cluster",
            );
        }
        networks.iter().map(|network| self.length(*network).map(|len| (*network, len))).collect()
    }

    fn length(&self, network: IpNet) -> Result<u8> {
        let (flag, asked, usual) = match network {
            IpNet::V4(_) => ("--node-cidr-mask-size-ipv4", self.v4, NodeCidrs::DEFAULT_LEN_V4),
            IpNet::V6(_) => ("--node-cidr-mask-size-ipv6", self.v6, NodeCidrs::DEFAULT_LEN_V6),
        };
        let flag = if self.either.is_some() { "--node-cidr-mask-size" } else { flag };
        let len = self.either.or(asked).unwrap_or(usual);
        let (least, most) = (network.prefix_len(), network.max_prefix_len());
        if len < least {
            let why = format!("a node's range of /{len} is larger than the cluster's network {network}: mask size of cluster CIDR must be less than or equal to it; write {least} to {most}");
            return Err(Error::Flag { flag, why });
        }
        if len > most {
            let why = format!("/{len} is too long for {network}: write {least} to {most}");
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
            why: format!(
                "{word:?} is no network: write an address and a length, like 10.244.0.0/16 or fd00:244::/48"
            ),
        })?;
        if network != network.trunc() {
            let why = format!("{network} is an address in {}: write that", network.trunc());
            return Err(Error::Flag { flag, why });
        }
        Ok(network)
    };
    words.map(network).collect()
}

fn one_of_each_family(flag: &'static str, networks: &[IpNet]) -> Result<()> {
    let count = |v4: bool| networks.iter().filter(|network| network.addr().is_ipv4() == v4).count();
    for (family, count) in [("IPv4", count(true)), ("IPv6", count(false))] {
        if count > 1 {
            let all: Vec<String> = networks.iter().map(IpNet::to_string).collect();
            let why = format!(
                "{} has {count} networks of {family}: one, or one of each family, is possible",
                all.join(",")
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
        Ok(networks.cluster.into_iter().map(|(_, len)| len).collect())
    }

    fn masks(either: u8, v4: u8, v6: u8) -> NodeCidrMasks {
        let some = |len| (len > 0).then_some(len);
        NodeCidrMasks { either: some(either), v4: some(v4), v6: some(v6) }
    }

    #[test]
    fn masks_mean_what_they_mean_upstream() {
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
        assert_eq!(lengths(v4, masks(16, 0, 0), ""), Ok(vec![16]), "one node has all");
    }

    #[test]
    fn what_cannot_work_is_refused_with_a_sentence() {
        let (v4, v6, both) = ("10.244.0.0/16", "fd00:244::/48", "10.244.0.0/16,fd00:244::/48");
        for (cluster, masks, services, sentence) in [
            ("", masks(0, 0, 0), "", "--cluster-cidr: the cluster's network is needed"),
            ("10.244.0.0", masks(0, 0, 0), "", "--cluster-cidr: \"10.244.0.0\" is no network"),
            ("10.244.0.1/16", masks(0, 0, 0), "", "--cluster-cidr: 10.244.0.1/16 is an address in 10.244.0.0/16"),
            ("10.1.0.0/16,10.2.0.0/16", masks(0, 0, 0), "", "--cluster-cidr: 10.1.0.0/16,10.2.0.0/16 has 2 networks of IPv4"),
            ("10.1.0.0/16,fd00::/48,fd01::/48", masks(0, 0, 0), "", "has 2 networks of IPv6"),
            (both, masks(24, 0, 0), "", "usage of --node-cidr-mask-size is not allowed with dual-stack clusters"),
            (v4, masks(24, 24, 0), "", "--node-cidr-mask-size: it cannot be told together"),
            (v6, masks(0, 24, 0), "", "usage of --node-cidr-mask-size-ipv4 is not allowed for a single-stack IPv6"),
            (v4, masks(0, 0, 64), "", "usage of --node-cidr-mask-size-ipv6 is not allowed for a single-stack IPv4"),
            (v4, masks(8, 0, 0), "", "--node-cidr-mask-size: a node's range of /8 is larger than the cluster's network 10.244.0.0/16"),
            (v4, masks(0, 33, 0), "", "--node-cidr-mask-size-ipv4: /33 is too long for 10.244.0.0/16: write 16 to 32"),
            (v6, masks(32, 0, 0), "", "a node's range of /32 is larger"),
            (v4, masks(0, 0, 0), "10.0.0.0/8", "--service-cluster-ip-range: 10.0.0.0/8 covers all of the cluster's network"),
            (v4, masks(0, 0, 0), "10.96.0.0/12,10.112.0.0/12", "--service-cluster-ip-range: 10.96.0.0/12,10.112.0.0/12 has 2 networks"),
            (v4, masks(0, 0, 0), "services", "--service-cluster-ip-range: \"services\" is no network"),
        ] {
            let refusal = lengths(cluster, masks, services).unwrap_err();
            assert!(refusal.contains(sentence), "{refusal:?} should have {sentence:?}");
        }
    }

    #[test]
    fn services_within_the_clusters_network_are_kept_out() {
        let networks = ClusterCidrs::new("10.0.0.0/8", masks(0, 0, 0), "10.0.0.0/12").unwrap();
        assert_eq!(networks.overlaps().count(), 1);
        let given = networks.ranges().unwrap().assign("a").unwrap();
        assert_eq!(given, ["10.16.0.0/24".parse().unwrap()]);
    }
}

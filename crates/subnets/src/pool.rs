//! The pool of subnets that a store may assign: those of one size between a first and a last.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use podwire_ip::{to_u128, IpFamily};

use crate::node::{overlap, PodCidrs};

/// A network has at least four subnets.
const LEAST_BITS: u8 = 2;

/// The pool settings of one family in the network config.
pub(crate) struct PoolSpec {
    pub(crate) network: Option<IpNet>,
    pub(crate) len: u8,
    pub(crate) min: Option<IpAddr>,
    pub(crate) max: Option<IpAddr>,
}

/// The differences between the families in flannel's rules.
pub(crate) struct FamilyRules {
    /// The prefix of the config's keys.
    prefix: &'static str,
    network: &'static str,
    /// The network's name in flannel's message that it is too small.
    small: &'static str,
    /// The longest prefix of a node's subnet: a tunnel and a bridge need addresses.
    longest: u8,
    /// The default prefix length of a node's subnet.
    default: u8,
}

pub(crate) const V4: FamilyRules =
    FamilyRules { prefix: "", network: "Network", small: "network", longest: 30, default: 24 };
pub(crate) const V6: FamilyRules =
    FamilyRules { prefix: "IPv6", network: "IPv6Network", small: "IPv6Network", longest: 126, default: 64 };

/// The pools of both families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pools {
    /// The IPv4 pool, if nodes get IPv4 subnets.
    pub v4: Option<Pool>,
    /// The IPv6 pool, if nodes get IPv6 subnets.
    pub v6: Option<Pool>,
}

impl Pools {
    /// Whether pod CIDRs have the families, sizes and bounds of the pools.
    pub fn fit(&self, pod_cidrs: PodCidrs) -> bool {
        let fits = |pool: Option<Pool>, cidr: Option<IpNet>| match (pool, cidr) {
            (Some(pool), Some(cidr)) => pool.fits(cidr),
            (None, None) => true,
            _ => false,
        };
        fits(self.v4, pod_cidrs.v4.map(IpNet::V4)) && fits(self.v6, pod_cidrs.v6.map(IpNet::V6))
    }

    /// The first pod CIDR that is larger than a subnet, and the prefix length of a subnet.
    pub(crate) fn find_larger(&self, pod_cidrs: PodCidrs) -> Option<(IpNet, u8)> {
        let pools = || [self.v4, self.v6].into_iter().flatten();
        let larger = |cidr: IpNet| Some((cidr, pools().find(|pool| pool.is_exceeded_by(cidr))?.len));
        pod_cidrs.iter().find_map(larger)
    }

    /// The pod CIDRs of a key that are taken: a key takes at most one subnet. One that is larger than a subnet takes
    /// none of those that it contains: otherwise a client that can write four keys leaves no subnet for any node. A
    /// smaller one takes its subnet only with a node.
    pub(crate) fn claimed(&self, key: PodCidrs, has_node: bool) -> PodCidrs {
        let is_taken = |pool: Option<Pool>, cidr: IpNet| {
            pool.is_some_and(|pool| pool.fits(cidr) || (has_node && pool.has_part(cidr)))
        };
        PodCidrs {
            v4: key.v4.filter(|cidr| is_taken(self.v4, IpNet::V4(*cidr))),
            v6: key.v6.filter(|cidr| is_taken(self.v6, IpNet::V6(*cidr))),
        }
    }
}

/// The subnets of one family that may be assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    network: IpNet,
    min: IpAddr,
    max: IpAddr,
    len: u8,
}

impl Pool {
    /// Checks settings by flannel's rules, with its messages, and then by ours.
    pub(crate) fn new(rules: &FamilyRules, spec: PoolSpec) -> Result<Pool, String> {
        let FamilyRules { prefix, network, small, longest, default } = rules;
        let Some(net) = spec.network else {
            return Err(format!(
                "please define a correct {network} parameter in the flannel config, such as {}",
                if *longest == 30 { "\"10.244.0.0/16\"" } else { "\"fd00:10:244::/56\"" }
            ));
        };
        let smallest = longest - 2;
        let len = match spec.len {
            0 if net.prefix_len() > smallest => {
                return Err(format!("{small} is too small. Minimum useful network prefix is /{smallest}, and {net} is smaller"))
            }
            0 if net.prefix_len() <= default - 2 => *default,
            0 => net.prefix_len() + LEAST_BITS,
            len if len > *longest => {
                return Err(format!("SubnetLen must be less than /{}, and {prefix}SubnetLen is {len}", longest + 1))
            }
            len if len < net.prefix_len() + LEAST_BITS => {
                return Err(format!(
                    "network must be able to accommodate at least four subnets: /{len} does not fit four times into {net}"
                ))
            }
            len => len,
        };
        let within = |key: &str, ip: Option<IpAddr>, fallback: u128| match ip {
            Some(ip) if !net.contains(&ip) => {
                Err(format!("{prefix}{key} is not in the range of the {network}: {ip} is not in {net}"))
            }
            Some(ip) => Ok(ip),
            None => Ok(address(fallback, net.addr())),
        };
        // The first subnet is not used: its first address is the network address.
        let size = size(net.addr(), len);
        let min = within("SubnetMin", spec.min, to_u128(net.network()) + size)?;
        let max = within("SubnetMax", spec.max, to_u128(net.broadcast()) - (size - 1))?;
        for (key, ip) in [("SubnetMin", min), ("SubnetMax", max)] {
            if !to_u128(ip).is_multiple_of(size) {
                return Err(format!("{prefix}{key} is not on a SubnetLen boundary: {ip}, with /{len}"));
            }
        }
        if to_u128(min) > to_u128(max) {
            return Err(format!("{prefix}SubnetMin {min} is after {prefix}SubnetMax {max}"));
        }
        Ok(Pool { network: net, min, max, len })
    }

    /// The IP family.
    pub(crate) fn family(&self) -> IpFamily {
        IpFamily::of(self.min)
    }

    /// Whether a CIDR has the size of the pool's subnets and is between its bounds.
    pub fn fits(&self, cidr: IpNet) -> bool {
        let at = to_u128(cidr.network());
        IpFamily::of_net(cidr) == self.family()
            && cidr.prefix_len() == self.len
            && at >= to_u128(self.min)
            && at <= to_u128(self.max)
    }

    /// Whether a CIDR is in the network and not larger than a subnet. An earlier config with the same network may have
    /// had smaller ones.
    fn has_part(&self, cidr: IpNet) -> bool {
        self.network.contains(&cidr) && !self.is_exceeded_by(cidr)
    }

    /// Whether a CIDR of this family is larger than a subnet.
    fn is_exceeded_by(&self, cidr: IpNet) -> bool {
        IpFamily::of_net(cidr) == self.family() && cidr.prefix_len() < self.len
    }

    /// The subnets that do not overlap any of `taken`, from the first.
    pub fn free<'t>(&self, taken: &'t [IpNet]) -> impl Iterator<Item = IpNet> + use<'t> {
        let (mut next, last, size) = (Some(to_u128(self.min)), to_u128(self.max), size(self.min, self.len));
        let (like, len) = (self.min, self.len);
        std::iter::from_fn(move || {
            let at = next.filter(|at| *at <= last)?;
            next = at.checked_add(size);
            IpNet::new(address(at, like), len).ok()
        })
        .filter(|subnet| !taken.iter().any(|other| overlap(*subnet, *other)))
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {} of /{}", self.min, self.max, self.len)
    }
}

/// The address for an integer, in the family of `like`.
fn address(number: u128, like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX)).into(),
        IpAddr::V6(_) => Ipv6Addr::from(number).into(),
    }
}

/// The number of addresses of a subnet.
fn size(like: IpAddr, len: u8) -> u128 {
    let bits = IpFamily::of(like).bits();
    1u128.checked_shl(u32::from(bits - len.min(bits))).unwrap_or(u128::MAX)
}

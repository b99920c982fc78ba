//! Which pod_cidrs a store may give out: the subnets of one size between a first and a last.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::node::overlap;
use crate::PodCidrs;

/// What the config says of one family.
pub(crate) struct Asked {
    pub(crate) network: Option<IpNet>,
    pub(crate) len: u8,
    pub(crate) min: Option<IpAddr>,
    pub(crate) max: Option<IpAddr>,
}

/// What differs between the families in flannel's rules.
pub(crate) struct Family {
    /// In front of the config's keys.
    prefix: &'static str,
    network: &'static str,
    /// How flannel calls the network when it is too small.
    small: &'static str,
    /// The longest prefix of a node's range: a tunnel and a bridge need addresses.
    longest: u8,
    /// The usual prefix of a node's range.
    usual: u8,
}

pub(crate) const V4: Family =
    Family { prefix: "", network: "Network", small: "network", longest: 30, usual: 24 };
pub(crate) const V6: Family =
    Family { prefix: "IPv6", network: "IPv6Network", small: "IPv6Network", longest: 126, usual: 64 };

/// The pools of both families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pools {
    /// The IPv4 pool, if nodes get IPv4 pod_cidrs.
    pub v4: Option<Pool>,
    /// The IPv6 pool, if nodes get IPv6 pod_cidrs.
    pub v6: Option<Pool>,
}

impl Pools {
    /// Whether a node may keep these: of the right families, sizes and bounds.
    pub fn fit(&self, pod_cidrs: PodCidrs) -> bool {
        let fits = |pool: Option<Pool>, range: Option<IpNet>| match (pool, range) {
            (Some(pool), Some(range)) => pool.fits(range),
            (None, None) => true,
            _ => false,
        };
        fits(self.v4, pod_cidrs.v4.map(IpNet::V4)) && fits(self.v6, pod_cidrs.v6.map(IpNet::V6))
    }
}

/// The pod_cidrs of one family that may be given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    min: IpAddr,
    max: IpAddr,
    len: u8,
}

impl Pool {
    /// flannel's rules, and its words, then ours.
    pub(crate) fn check(family: &Family, asked: Asked) -> Result<Pool, String> {
        let Family { prefix, network, small, longest, usual } = family;
        let Some(net) = asked.network else {
            return Err(format!(
                "please define a correct {network} parameter in the flannel config, such as {}",
                if *longest == 30 { "\"10.244.0.0/16\"" } else { "\"fd00:10:244::/56\"" }
            ));
        };
        let smallest = longest - 2;
        let len = match asked.len {
            0 if net.prefix_len() > smallest => {
                return Err(format!("{small} is too small. Minimum useful network prefix is /{smallest}, and {net} is smaller"))
            }
            0 if net.prefix_len() <= usual - 2 => *usual,
            0 => net.prefix_len() + 2,
            len if len > *longest => {
                return Err(format!("SubnetLen must be less than /{}, and {prefix}SubnetLen is {len}", longest + 1))
            }
            len if len < net.prefix_len() + 2 => {
                return Err(format!(
                    "network must be able to accommodate at least four subnets: /{len} does not fit four times into {net}"
                ))
            }
            len => len,
        };
        let within = |key: &str, ip: Option<IpAddr>, default: u128| match ip {
            Some(ip) if !net.contains(&ip) => {
                Err(format!("{prefix}{key} is not in the range of the {network}: {ip} is not in {net}"))
            }
            Some(ip) => Ok(ip),
            None => Ok(address(default, net.addr())),
        };
        // The first range is not used: its first address would be the network's own.
        let size = size(net.addr(), len);
        let min = within("SubnetMin", asked.min, number(net.network()) + size)?;
        let max = within("SubnetMax", asked.max, number(net.broadcast()) - (size - 1))?;
        for (key, ip) in [("SubnetMin", min), ("SubnetMax", max)] {
            if !number(ip).is_multiple_of(size) {
                return Err(format!("{prefix}{key} is not on a SubnetLen boundary: {ip}, with /{len}"));
            }
        }
        match number(min) <= number(max) {
            true => Ok(Pool { min, max, len }),
            false => Err(format!(
                "{prefix}SubnetMin {min} is behind {prefix}SubnetMax {max}: no range is between them"
            )),
        }
    }

    /// Whether it is of IPv4.
    pub(crate) fn is_ipv4(&self) -> bool {
        self.min.is_ipv4()
    }

    /// Whether a range is of the size and between the bounds.
    pub fn fits(&self, range: IpNet) -> bool {
        let at = number(range.network());
        range.network().is_ipv4() == self.min.is_ipv4()
            && range.prefix_len() == self.len
            && at >= number(self.min)
            && at <= number(self.max)
    }

    /// The pod_cidrs that share no address with any of `taken`, from the first.
    pub fn free<'t>(&self, taken: &'t [IpNet]) -> impl Iterator<Item = IpNet> + use<'t> {
        let (mut next, last, size) = (Some(number(self.min)), number(self.max), size(self.min, self.len));
        let (like, len) = (self.min, self.len);
        std::iter::from_fn(move || {
            let at = next.filter(|at| *at <= last)?;
            next = at.checked_add(size);
            IpNet::new(address(at, like), len).ok()
        })
        .filter(|range| !taken.iter().any(|other| overlap(*range, *other)))
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {} of /{}", self.min, self.max, self.len)
    }
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(u32::from(ip)),
        IpAddr::V6(ip) => u128::from(ip),
    }
}

/// The address with a number, in the family of `like`.
fn address(number: u128, like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX)).into(),
        IpAddr::V6(_) => Ipv6Addr::from(number).into(),
    }
}

/// How many addresses a range has.
fn size(like: IpAddr, len: u8) -> u128 {
    let bits = if like.is_ipv4() { 32 } else { 128 };
    1u128.checked_shl(u32::from(bits - len.min(bits))).unwrap_or(u128::MAX)
}

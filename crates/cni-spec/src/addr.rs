//! Addresses in the text forms that Go's `net` package reads and prints.
//!
//! An address in a result keeps its host bits (`10.1.0.5/16` is the pod's address *and* its subnet). An IPv4-mapped IPv6 address
//! (`::ffff:10.1.0.5`) is converted to IPv4 here.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};
use serde::{de, Deserialize, Deserializer, Serializer};

use crate::Error;

/// Reads an address, for example a gateway (code 7).
pub fn parse_ip(text: &str) -> Result<IpAddr, Error> {
    let ip =
        text.parse::<IpAddr>().map_err(|_| Error::invalid_config(format!("invalid IP address: {text:?}")))?;
    Ok(ip.to_canonical())
}

/// Reads an address with its prefix length, keeping the host bits (code 7).
pub fn parse_net(text: &str) -> Result<IpNet, Error> {
    let fail = |why: &str| Error::invalid_config(format!("invalid CIDR address: {text:?} ({why})"));
    let Some((address, prefix)) = text.split_once('/') else {
        return Err(fail("expected an address and a prefix length, like 10.1.0.5/16"));
    };
    let address = address.parse::<IpAddr>().map_err(|_| fail("the part before '/' is not an IP address"))?;
    let is_number = (1..=3).contains(&prefix.len()) && prefix.bytes().all(|b| b.is_ascii_digit());
    let prefix = prefix.parse::<u8>().ok().filter(|_| is_number);
    let net = prefix.and_then(|prefix| IpNet::new(address, prefix).ok());
    let net = net.ok_or_else(|| {
        fail(if address.is_ipv4() {
            "the prefix length must be 0..32"
        } else {
            "the prefix length must be 0..128"
        })
    })?;
    match net {
        // A prefix shorter than that of the mapping would contain every IPv4 address.
        IpNet::V6(v6) if v6.addr().to_ipv4_mapped().is_some() && v6.prefix_len() < 96 => {
            Err(fail("an IPv4-mapped address needs a prefix length of at least 96"))
        }
        net => Ok(canonical_net(net)),
    }
}

/// The same network, as IPv4 if it is an IPv4-mapped one: `::ffff:10.1.0.5/112` is `10.1.0.5/16`.
pub fn canonical_net(net: IpNet) -> IpNet {
    match (net.addr().to_canonical(), net) {
        (IpAddr::V4(v4), IpNet::V6(v6)) => {
            Ipv4Net::new(v4, v6.prefix_len().saturating_sub(96)).map_or(net, IpNet::V4)
        }
        _ => net,
    }
}

/// `#[serde(with = "podwire_cni_spec::addr::net")]` for a mandatory [`IpNet`].
pub mod net {
    use super::*;

    /// Prints `10.1.0.5/16`.
    pub fn serialize<S: Serializer>(net: &IpNet, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&canonical_net(*net))
    }

    /// Reads what [`parse_net`] reads.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<IpNet, D::Error> {
        parse_net(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// `#[serde(default, with = "podwire_cni_spec::addr::optional_net")]` for an [`IpNet`] that may be absent, null or `""`.
pub mod optional_net {
    use super::*;

    /// Prints the network, or null.
    pub fn serialize<S: Serializer>(net: &Option<IpNet>, serializer: S) -> Result<S::Ok, S::Error> {
        match net {
            Some(net) => super::net::serialize(net, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// Reads what [`parse_net`] reads.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpNet>, D::Error> {
        match Option::<String>::deserialize(deserializer)?.as_deref() {
            None | Some("") => Ok(None),
            Some(text) => parse_net(text).map(Some).map_err(de::Error::custom),
        }
    }
}

/// `#[serde(default, with = "podwire_cni_spec::addr::optional_ip")]` for an [`IpAddr`] that may be absent, null or `""`.
pub mod optional_ip {
    use super::*;

    /// Prints the address, or null.
    pub fn serialize<S: Serializer>(ip: &Option<IpAddr>, serializer: S) -> Result<S::Ok, S::Error> {
        match ip {
            Some(ip) => serializer.collect_str(&ip.to_canonical()),
            None => serializer.serialize_none(),
        }
    }

    /// Reads what [`parse_ip`] reads.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
        match Option::<String>::deserialize(deserializer)?.as_deref() {
            None | Some("") => Ok(None),
            Some(text) => parse_ip(text).map(Some).map_err(de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_bits_stay() {
        assert_eq!(parse_net("10.1.0.5/16").unwrap().to_string(), "10.1.0.5/16");
        assert_eq!(parse_net("FD00:0:0::5/64").unwrap().to_string(), "fd00::5/64");
    }

    #[test]
    fn mapped_addresses_become_ipv4() {
        assert_eq!(parse_net("::ffff:10.1.0.5/112").unwrap().to_string(), "10.1.0.5/16");
        assert_eq!(parse_ip("::ffff:10.1.0.1").unwrap().to_string(), "10.1.0.1");
        let mapped = "::ffff:10.1.0.5/64";
        assert!(parse_net(mapped).is_err());
        assert_eq!(canonical_net(mapped.parse().unwrap()).to_string(), "10.1.0.5/0", "as Go prints it");
    }

    #[test]
    fn invalid_addresses_are_refused_with_a_reason() {
        for bad in [
            "",
            "10.1.0.5",
            "10.1.0.5/",
            "10.1.0.5/33",
            "10.1.0.5/+8",
            "10.1.0/24",
            "::/129",
            "x/8",
            "010.1.0.5/8",
            "fe80::1%eth0/64",
            "10.0.0.1/8/8",
            "10.0.0.1/ 8",
            "10.0.0.1/0000008",
            "/8",
        ] {
            let error = parse_net(bad).unwrap_err().to_string();
            assert!(error.starts_with("invalid CIDR address: "), "{bad}: {error}");
        }
        assert_eq!(parse_ip("gw").unwrap_err().to_string(), "invalid IP address: \"gw\"");
        assert!(parse_ip("10.0.0.1/8").is_err());
    }
}

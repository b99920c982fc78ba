//! Hardware addresses.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use podwire_netlink::sys;
use sha2::{Digest, Sha512};

use crate::error::{Error, Result};

/// A hardware address of six bytes (EUI-48).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// A random, locally administered unicast address.
    pub fn random() -> Result<Mac> {
        let mut bytes =
            sys::random::<6>().map_err(|error| Error::Other(format!("get random bytes: {error}")))?;
        bytes[0] = (bytes[0] & 0xfe) | 0x02;
        Ok(Mac(bytes))
    }

    /// A locally administered address derived from a text: the same text always gives the same address.
    pub fn of(text: &str) -> Mac {
        let hash = Sha512::digest(text.as_bytes());
        Mac([(hash[0] & 0xfe) | 0x02, hash[1], hash[2], hash[3], hash[4], hash[5]])
    }

    /// A hardware address derived from an IP address. It contains the octets of an IPv4 address.
    pub fn of_ip(ip: IpAddr) -> Mac {
        match ip {
            IpAddr::V4(ip) => {
                let [a, b, c, d] = ip.octets();
                Mac([0x0a, 0x58, a, b, c, d])
            }
            IpAddr::V6(ip) => Mac::of(&ip.to_string()),
        }
    }

    /// The link-local address that the kernel derives from it by default (RFC 4291, appendix A).
    pub fn link_local(&self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        let half = |high, low| u16::from_be_bytes([high, low]);
        Ipv6Addr::new(0xfe80, 0, 0, 0, half(a ^ 2, b), half(c, 0xff), half(0xfe, d), half(e, f))
    }

    /// Whether a device can have it: neither all zero nor multicast.
    pub fn is_usable(&self) -> bool {
        self.0 != [0; 6] && self.0[0] & 1 == 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&podwire_netlink::rt::link::mac_text(&self.0))
    }
}

impl FromStr for Mac {
    type Err = Error;

    fn from_str(text: &str) -> Result<Mac> {
        let invalid = || {
            Error::Other(format!("address {text:?}: invalid MAC address, write it like 02:00:5e:10:00:01"))
        };
        let mut bytes = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut bytes {
            let part = parts
                .next()
                .filter(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))
                .ok_or_else(invalid)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| invalid())?;
        }
        match parts.next() {
            None => Ok(Mac(bytes)),
            Some(_) => Err(invalid()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_and_print() {
        let mac: Mac = "02:00:5E:10:00:01".parse().unwrap();
        assert_eq!(mac.to_string(), "02:00:5e:10:00:01");
        assert!(mac.is_usable());
        assert_eq!(mac.link_local().to_string(), "fe80::5eff:fe10:1");
        for bad in
            ["", "02:00", "02:00:5e:10:00:01:02", "zz:00:5e:10:00:01", "2:0:5e:10:0:1", "+2:00:5e:10:00:01"]
        {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
        assert!(Mac::random().unwrap().is_usable());
        assert!(
            Mac::of("br0").is_usable()
                && Mac::of("br0") == Mac::of("br0")
                && Mac::of("br0") != Mac::of("br1")
        );
    }
}

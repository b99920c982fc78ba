//! Decoding of attributes: `struct nlattr` (length, type, payload, padded to four bytes), which may be nested.
//!
//! The decoder accepts any bytes: an invalid length ends the iteration, and it never reads past the buffer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const NLA_TYPE_MASK: u16 = 0x3fff;

/// One attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr<'a> {
    /// Its type, without the nested and byte-order flags.
    pub kind: u16,
    /// Its payload.
    pub value: &'a [u8],
}

/// The attributes in `bytes`, in their order.
pub fn attrs(bytes: &[u8]) -> Attrs<'_> {
    Attrs { rest: bytes }
}

/// The first attribute of type `kind` in `bytes`.
pub fn find(bytes: &[u8], kind: u16) -> Option<Attr<'_>> {
    attrs(bytes).find(|a| a.kind == kind)
}

/// Iterator over attributes; see [`attrs`].
#[derive(Clone, Debug)]
pub struct Attrs<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Attrs<'a> {
    type Item = Attr<'a>;

    fn next(&mut self) -> Option<Attr<'a>> {
        let head = self.rest.get(..4)?;
        let length = u16::from_ne_bytes([head[0], head[1]]) as usize;
        let kind = u16::from_ne_bytes([head[2], head[3]]) & NLA_TYPE_MASK;
        let value = self.rest.get(4..length)?;
        self.rest = self.rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(Attr { kind, value })
    }
}

impl<'a> Attr<'a> {
    /// The attributes nested in this one.
    pub fn nested(&self) -> Attrs<'a> {
        attrs(self.value)
    }

    /// As a byte.
    pub fn u8(&self) -> Option<u8> {
        self.value.first().copied()
    }

    /// As a 16-bit number in host byte order.
    pub fn u16(&self) -> Option<u16> {
        Some(u16::from_ne_bytes(self.value.get(..2)?.try_into().ok()?))
    }

    /// As a 32-bit number in host byte order.
    pub fn u32(&self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.value.get(..4)?.try_into().ok()?))
    }

    /// As a 64-bit number in host byte order.
    pub fn u64(&self) -> Option<u64> {
        Some(u64::from_ne_bytes(self.value.get(..8)?.try_into().ok()?))
    }

    /// As a 16-bit number in network byte order.
    pub fn be16(&self) -> Option<u16> {
        self.u16().map(u16::from_be)
    }

    /// As a 32-bit number in network byte order.
    pub fn be32(&self) -> Option<u32> {
        self.u32().map(u32::from_be)
    }

    /// As a 64-bit number in network byte order.
    pub fn be64(&self) -> Option<u64> {
        self.u64().map(u64::from_be)
    }

    /// As text up to the first NUL; bytes that are no UTF-8 are replaced.
    pub fn string(&self) -> String {
        let end = self.value.iter().position(|&b| b == 0).unwrap_or(self.value.len());
        String::from_utf8_lossy(&self.value[..end]).into_owned()
    }

    /// As an address, IPv4 or IPv6 by its length.
    pub fn ip(&self) -> Option<IpAddr> {
        ip(self.value)
    }
}

/// An address of four or sixteen bytes.
pub fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?))),
        16 => Some(IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_lengths_end_the_iteration() {
        assert_eq!(attrs(&[]).count(), 0);
        assert_eq!(attrs(&[255, 255, 1, 0, 9]).count(), 0);
        assert_eq!(attrs(&[0, 0, 1, 0]).count(), 0);
        assert_eq!(attrs(&[3, 0, 1, 0]).count(), 0);
    }

    #[test]
    fn padding_is_skipped_and_the_last_may_be_short() {
        let bytes = [5, 0, 1, 0, b'a', 0, 0, 0, 5, 0, 2, 0, b'b'];
        let all: Vec<_> = attrs(&bytes).map(|a| (a.kind, a.string())).collect();
        assert_eq!(all, [(1, "a".to_string()), (2, "b".to_string())]);
    }
}

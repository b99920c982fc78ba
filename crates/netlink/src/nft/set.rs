//! Sets and maps, in which rules look up keys.

use std::time::Duration;

use super::abi::*;
use super::expr::Expr;
use super::table::{message, Table, HEADER};
use super::userdata;
use crate::error::{found, Result};
use crate::message::Message;
use crate::socket::Socket;

/// The type of a field of a key or of a map's data. The kernel uses only its length; nft prints values by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `ipv4_addr`
    Ipv4,
    /// `ipv6_addr`
    Ipv6,
    /// `ether_addr`
    Mac,
    /// `inet_proto`
    Protocol,
    /// `inet_service`
    Port,
    /// `mark`
    Mark,
    /// `iface_index`
    IfIndex,
    /// `ifname`
    IfName,
}

impl Type {
    fn number(self) -> u32 {
        match self {
            Type::Ipv4 => TYPE_IPADDR,
            Type::Ipv6 => TYPE_IP6ADDR,
            Type::Mac => TYPE_ETHERADDR,
            Type::Protocol => TYPE_INET_PROTOCOL,
            Type::Port => TYPE_INET_SERVICE,
            Type::Mark => TYPE_MARK,
            Type::IfIndex => TYPE_IFINDEX,
            Type::IfName => TYPE_IFNAME,
        }
    }

    fn length(self) -> u32 {
        match self {
            Type::Protocol => 1,
            Type::Port => 2,
            Type::Ipv4 | Type::Mark | Type::IfIndex => 4,
            Type::Mac => 6,
            Type::Ipv6 | Type::IfName => 16,
        }
    }
}

/// The type number and length of a field, or of a concatenation.
fn described(types: &[Type]) -> (u32, u32) {
    match types {
        [one] => (one.number(), one.length()),
        many => many.iter().fold((0, 0), |(number, length), field| {
            (number << TYPE_BITS | field.number(), length + field.length().next_multiple_of(4))
        }),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds<'a> {
    Keys,
    Verdicts,
    Values(&'a [Type]),
}

/// A set, map or verdict map to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set<'a> {
    pub(super) name: &'a str,
    key: &'a [Type],
    holds: Holds<'a>,
    intervals: bool,
    counting: bool,
    lifetime: Option<Duration>,
    /// The number of elements that rules may add.
    dynamic: Option<u32>,
}

impl<'a> Set<'a> {
    /// A set of keys.
    pub const fn of(name: &'a str, key: &'a [Type]) -> Set<'a> {
        Set {
            name,
            key,
            holds: Holds::Keys,
            intervals: false,
            counting: false,
            lifetime: None,
            dynamic: None,
        }
    }

    /// A set of ranges of keys, such as networks: see [`Element::range`](super::Element::range). In keys with several
    /// fields each field has its own range: see [`Element::up_to`](super::Element::up_to).
    pub const fn ranges(name: &'a str, key: &'a [Type]) -> Set<'a> {
        Set { name, key, holds: Holds::Keys, intervals: true, counting: false, lifetime: None, dynamic: None }
    }

    /// A map from keys to values.
    pub const fn map(name: &'a str, key: &'a [Type], data: &'a [Type]) -> Set<'a> {
        Set {
            name,
            key,
            holds: Holds::Values(data),
            intervals: false,
            counting: false,
            lifetime: None,
            dynamic: None,
        }
    }

    /// A map from keys to verdicts.
    pub const fn verdicts(name: &'a str, key: &'a [Type]) -> Set<'a> {
        Set {
            name,
            key,
            holds: Holds::Verdicts,
            intervals: false,
            counting: false,
            lifetime: None,
            dynamic: None,
        }
    }

    /// With ranges of keys instead of single keys.
    pub const fn of_ranges(self) -> Set<'a> {
        Set { intervals: true, ..self }
    }

    /// With a counter for each element ([`list_counts`](super::list_counts)).
    pub const fn counting(self) -> Set<'a> {
        Set { counting: true, ..self }
    }

    /// Elements expire after this time.
    pub const fn forgetting(self, lifetime: Duration) -> Set<'a> {
        Set { lifetime: Some(lifetime), ..self }
    }

    /// Rules may add elements ([`Expr::UpdateMap`]), up to this number.
    pub const fn dynamic(self, size: u32) -> Set<'a> {
        Set { dynamic: Some(size), ..self }
    }

    /// `id` identifies the set within its transaction.
    pub(super) fn encode(&self, message: Message, id: u32) -> Message {
        let (key_type, key_length) = described(self.key);
        let map = if self.holds == Holds::Keys { 0 } else { NFT_SET_MAP };
        let intervals = if self.intervals { NFT_SET_INTERVAL } else { 0 };
        // Ranges with several fields need another kind of set, which must know the length of each field.
        let concatenated = self.intervals && self.key.len() > 1;
        let intervals = intervals | if concatenated { NFT_SET_CONCAT } else { 0 };
        let dynamic = self.dynamic.map_or(0, |_| NFT_SET_EVAL);
        let flags = map | intervals | dynamic | self.lifetime.map_or(0, |_| NFT_SET_TIMEOUT);
        let host_order = matches!(self.key, [Type::IfName | Type::IfIndex | Type::Mark]);
        let message = message
            .string(NFTA_SET_NAME, self.name)
            .be32(NFTA_SET_FLAGS, flags)
            .be32(NFTA_SET_KEY_TYPE, key_type)
            .be32(NFTA_SET_KEY_LEN, key_length)
            .be32(NFTA_SET_ID, id)
            .maybe(concatenated.then_some(self.key), |m, fields| {
                m.nest(NFTA_SET_DESC, |m| m.nest(NFTA_SET_DESC_CONCAT, |m| fields.iter().fold(m, field)))
            })
            .maybe(self.dynamic, |m, size| m.nest(NFTA_SET_DESC, |m| m.be32(NFTA_SET_DESC_SIZE, size)))
            .maybe(self.lifetime, |m, time| m.be64(NFTA_SET_TIMEOUT, time.as_millis() as u64))
            .maybe(host_order.then(userdata::host_order), |m, bytes| m.bytes(NFTA_SET_USERDATA, &bytes))
            .maybe(self.counting.then_some(Expr::Counter), |m, counter| {
                m.nest(NFTA_SET_EXPR, |m| counter.encode_bare(m))
            });
        match self.holds {
            Holds::Keys => message,
            Holds::Verdicts => message.be32(NFTA_SET_DATA_TYPE, NFT_DATA_VERDICT).be32(NFTA_SET_DATA_LEN, 0),
            Holds::Values(types) => {
                let (data_type, data_length) = described(types);
                message.be32(NFTA_SET_DATA_TYPE, data_type).be32(NFTA_SET_DATA_LEN, data_length)
            }
        }
    }
}

fn field(message: Message, field: &Type) -> Message {
    message.nest(NFTA_LIST_ELEM, |m| m.be32(NFTA_SET_FIELD_LEN, field.length()))
}

/// Whether the table has the set or map.
pub fn has_set(socket: &mut Socket, table: &Table, name: &str) -> Result<bool> {
    let doing = format!("look for set {name} of table {table}");
    let request = message(NFT_MSG_GETSET, 0, table.family.number(), doing)
        .string(NFTA_SET_TABLE, &table.name)
        .string(NFTA_SET_NAME, name);
    Ok(found(socket.query(request, |_| Some(())))?.is_some())
}

/// The names of the table's sets and maps; empty if the table is missing.
pub fn list_sets(socket: &mut Socket, table: &Table) -> Result<Vec<String>> {
    let request =
        message(NFT_MSG_GETSET, 0, table.family.number(), format!("list the sets of table {table}"))
            .string(NFTA_SET_TABLE, &table.name);
    let listed = socket
        .list(request, |frame| frame.attrs(HEADER).find(|a| a.kind == NFTA_SET_NAME).map(|a| a.string()));
    match listed {
        Err(error) if error.is_gone() => Ok(Vec::new()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_concatenation_has_the_number_that_nft_gives_it() {
        assert_eq!(described(&[Type::Mac]), (9, 6));
        assert_eq!(described(&[Type::Protocol, Type::Port]), (12 << 6 | 13, 8));
        assert_eq!(described(&[Type::IfName, Type::Mac]), (41 << 6 | 9, 24));
    }
}

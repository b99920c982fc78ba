//! Elements of sets and maps.

use std::net::IpAddr;

use super::abi::*;
use super::table::{message, Table, HEADER};
use super::userdata;
use super::value::{Value, Verdict};
use crate::attr::{self, Attr};
use crate::error::{found, Result};
use crate::message::{Frame, Message};
use crate::socket::Socket;

/// The data of an element.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Data {
    /// None: an element of a set.
    #[default]
    None,
    /// A value, in a map.
    Value(Value),
    /// A verdict, in a verdict map.
    Verdict(Verdict),
}

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// The key.
    pub key: Value,
    /// In a set of ranges with several fields: the last key of the range that starts at `key`.
    pub last: Option<Value>,
    /// The data.
    pub data: Data,
    /// The comment; in this project it names the owner.
    pub comment: Option<String>,
    /// In a set of ranges: whether the key is the first after a range, and not the first of one.
    pub ends_range: bool,
}

impl Element {
    /// A key without data or comment.
    pub fn key(key: Value) -> Element {
        Element { key, last: None, data: Data::None, comment: None, ends_range: false }
    }

    /// The elements for the addresses from `first` to `last` in a set of ranges: the first address, and the first
    /// address after the range, if there is one.
    pub fn range(first: IpAddr, last: IpAddr) -> Vec<Element> {
        let next = match last {
            IpAddr::V4(last) => u32::from(last).checked_add(1).map(|next| IpAddr::V4(next.into())),
            IpAddr::V6(last) => u128::from(last).checked_add(1).map(|next| IpAddr::V6(next.into())),
        };
        let end = next.map(|ip| Element { ends_range: true, ..Element::key(Value::ip(ip)) });
        std::iter::once(Element::key(Value::ip(first))).chain(end).collect()
    }

    /// In a set of ranges: the first key after a range.
    pub fn end_of_range(key: Value) -> Element {
        Element { ends_range: true, ..Element::key(key) }
    }

    /// In a set of ranges with several fields: all keys from its own to this one, field by field.
    pub fn up_to(self, last: Value) -> Element {
        Element { last: Some(last), ..self }
    }

    /// With a value as data.
    pub fn to(self, data: Value) -> Element {
        Element { data: Data::Value(data), ..self }
    }

    /// With a verdict as data.
    pub fn verdict(self, verdict: Verdict) -> Element {
        Element { data: Data::Verdict(verdict), ..self }
    }

    /// With a comment, truncated to [`MAX_COMMENT`](super::MAX_COMMENT) bytes, so that it equals what is read back.
    pub fn comment(self, comment: impl Into<String>) -> Element {
        let mut comment = comment.into();
        comment.truncate(userdata::truncate(&comment).len());
        Element { comment: Some(comment), ..self }
    }

    fn encode(&self, message: Message) -> Message {
        message.nest(NFTA_LIST_ELEM, |m| {
            let m = m.nest(NFTA_SET_ELEM_KEY, |m| m.bytes(NFTA_DATA_VALUE, self.key.bytes()));
            let m = m.maybe(self.last.as_ref(), |m, last| {
                m.nest(NFTA_SET_ELEM_KEY_END, |m| m.bytes(NFTA_DATA_VALUE, last.bytes()))
            });
            let m = match &self.data {
                Data::None => m,
                Data::Value(value) => m.nest(NFTA_SET_ELEM_DATA, |m| m.bytes(NFTA_DATA_VALUE, value.bytes())),
                Data::Verdict(verdict) => m.nest(NFTA_SET_ELEM_DATA, |m| verdict.encode(m)),
            };
            let m = m.maybe(self.ends_range.then_some(NFT_SET_ELEM_INTERVAL_END), |m, flag| {
                m.be32(NFTA_SET_ELEM_FLAGS, flag)
            });
            m.maybe(self.comment.as_ref(), |m, text| m.bytes(NFTA_SET_ELEM_USERDATA, &userdata::encode(text)))
        })
    }

    fn decode(attr: &Attr<'_>) -> Option<Element> {
        let key = attr::find(attr.value, NFTA_SET_ELEM_KEY)?;
        let key = Value::raw(attr::find(key.value, NFTA_DATA_VALUE)?.value);
        let last = attr::find(attr.value, NFTA_SET_ELEM_KEY_END)
            .and_then(|end| Some(Value::raw(attr::find(end.value, NFTA_DATA_VALUE)?.value)));
        let data = attr::find(attr.value, NFTA_SET_ELEM_DATA).and_then(|data| {
            let data = data.nested().next()?;
            match data.kind {
                NFTA_DATA_VALUE => Some(Data::Value(Value::raw(data.value))),
                NFTA_DATA_VERDICT => Some(Data::Verdict(Verdict::decode(&data)?)),
                _ => None,
            }
        });
        let comment = attr::find(attr.value, NFTA_SET_ELEM_USERDATA).and_then(|a| userdata::decode(a.value));
        let flags = attr::find(attr.value, NFTA_SET_ELEM_FLAGS).and_then(|a| a.be32()).unwrap_or(0);
        let ends_range = flags & NFT_SET_ELEM_INTERVAL_END != 0;
        Some(Element { key, last, data: data.unwrap_or_default(), comment, ends_range })
    }
}

/// Appends the table, the set and the elements.
pub(super) fn encode(message: Message, table: &Table, set: &str, elements: &[Element]) -> Message {
    message
        .string(NFTA_SET_ELEM_LIST_TABLE, &table.name)
        .string(NFTA_SET_ELEM_LIST_SET, set)
        .nest(NFTA_SET_ELEM_LIST_ELEMENTS, |m| elements.iter().fold(m, |m, element| element.encode(m)))
}

fn decode(frame: &Frame<'_>) -> Option<Vec<Element>> {
    let list = frame.attrs(HEADER).find(|a| a.kind == NFTA_SET_ELEM_LIST_ELEMENTS)?;
    Some(list.nested().filter_map(|a| Element::decode(&a)).collect())
}

/// The element with this key; the kernel finds it without reading the others. `None` also if the set or table is
/// missing.
pub fn get_element(socket: &mut Socket, table: &Table, set: &str, key: &Value) -> Result<Option<Element>> {
    let request = message(
        NFT_MSG_GETSETELEM,
        0,
        table.family.number(),
        format!("look for {key} in set {set} of table {table}"),
    );
    let request = encode(request, table, set, &[Element::key(key.clone())]);
    found(socket.query(request, |frame| decode(&frame)?.into_iter().next()))
}

/// The counter of an element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets that matched.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Count {
    /// The counter of an element; `None` if its set has no counters.
    fn decode(attr: &Attr<'_>) -> Option<Count> {
        let counter = attr::find(attr.value, NFTA_SET_ELEM_EXPR)?;
        let data = attr::find(counter.value, NFTA_EXPR_DATA)?.value;
        let number = |kind: u16| attr::find(data, kind)?.be64();
        Some(Count { packets: number(NFTA_COUNTER_PACKETS)?, bytes: number(NFTA_COUNTER_BYTES)? })
    }
}

/// The elements of a [counting](super::Set::counting) set with their counters; empty if the set or table is missing.
pub fn list_counts(socket: &mut Socket, table: &Table, set: &str) -> Result<Vec<(Element, Count)>> {
    let one = |attr: Attr<'_>| Some((Element::decode(&attr)?, Count::decode(&attr)?));
    let parts = found(socket.list(list_request(table, set), |frame| {
        let list = frame.attrs(HEADER).find(|a| a.kind == NFTA_SET_ELEM_LIST_ELEMENTS)?;
        Some(list.nested().filter_map(one).collect::<Vec<_>>())
    }))?;
    Ok(parts.unwrap_or_default().into_iter().flatten().collect())
}

fn list_request(table: &Table, set: &str) -> Message {
    message(NFT_MSG_GETSETELEM, 0, table.family.number(), format!("read set {set} of table {table}"))
        .string(NFTA_SET_ELEM_LIST_TABLE, &table.name)
        .string(NFTA_SET_ELEM_LIST_SET, set)
}

/// All elements of a set; empty if the set or table is missing.
pub fn list_elements(socket: &mut Socket, table: &Table, set: &str) -> Result<Vec<Element>> {
    let parts = found(socket.list(list_request(table, set), |frame| decode(&frame)))?;
    Ok(parts.unwrap_or_default().into_iter().flatten().collect())
}

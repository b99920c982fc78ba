//! Elements of sets and maps: added, read one by one or all together.

use std::net::IpAddr;

use super::abi::*;
use super::value::{Value, Verdict};
use super::{message, userdata, Table, HEADER};
use crate::attr::{self, Attr};
use crate::error::{found, Result};
use crate::message::{Frame, Message};
use crate::socket::Socket;

/// What an element leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Data {
    /// Nothing: a key of a set.
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
    /// What it is found by.
    pub key: Value,
    /// What it leads to.
    pub data: Data,
    /// What it says about itself; here, whose it is.
    pub comment: Option<String>,
    /// In a set of ranges: it is the first key behind one, and not the first key of one.
    pub ends_range: bool,
}

impl Element {
    /// A key without data or comment.
    pub fn key(key: Value) -> Element {
        Element { key, data: Data::None, comment: None, ends_range: false }
    }

    /// The elements that make a set of ranges hold the addresses from `first` to `last`: where the range begins, and
    /// where what is behind it does, if anything is.
    pub fn range(first: IpAddr, last: IpAddr) -> Vec<Element> {
        let behind = match last {
            IpAddr::V4(last) => u32::from(last).checked_add(1).map(|next| IpAddr::V4(next.into())),
            IpAddr::V6(last) => u128::from(last).checked_add(1).map(|next| IpAddr::V6(next.into())),
        };
        let end = behind.map(|ip| Element { ends_range: true, ..Element::key(Value::ip(ip)) });
        std::iter::once(Element::key(Value::ip(first))).chain(end).collect()
    }

    /// In a set of ranges, the key before which one ends.
    pub fn end_of_range(key: Value) -> Element {
        Element { ends_range: true, ..Element::key(key) }
    }

    /// Leading to a value.
    pub fn to(self, data: Value) -> Element {
        Element { data: Data::Value(data), ..self }
    }

    /// Leading to a verdict.
    pub fn verdict(self, verdict: Verdict) -> Element {
        Element { data: Data::Verdict(verdict), ..self }
    }

    /// With a comment, of at most [`MAX_COMMENT`](super::MAX_COMMENT) bytes.
    pub fn comment(self, comment: impl Into<String>) -> Element {
        Element { comment: Some(comment.into()), ..self }
    }

    fn encode(&self, message: Message) -> Message {
        message.nest(NFTA_LIST_ELEM, |m| {
            let m = m.nest(NFTA_SET_ELEM_KEY, |m| m.bytes(NFTA_DATA_VALUE, self.key.bytes()));
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
        Some(Element { key, data: data.unwrap_or_default(), comment, ends_range })
    }
}

/// Appends the set's place and the elements.
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

/// The element with this key, found by the kernel without reading the others. `None` also when there is no
/// such set or table.
pub fn get_element(socket: &mut Socket, table: &Table, set: &str, key: &Value) -> Result<Option<Element>> {
    let asked = message(
        NFT_MSG_GETSETELEM,
        0,
        table.family.number(),
        format!("look for {key} in set {set} of table {table}"),
    );
    let asked = encode(asked, table, set, &[Element::key(key.clone())]);
    found(socket.query(asked, |frame| decode(&frame)?.into_iter().next()))
}

/// All elements of a set; none if there is no such set or table.
pub fn list_elements(socket: &mut Socket, table: &Table, set: &str) -> Result<Vec<Element>> {
    let asked =
        message(NFT_MSG_GETSETELEM, 0, table.family.number(), format!("read set {set} of table {table}"))
            .string(NFTA_SET_ELEM_LIST_TABLE, &table.name)
            .string(NFTA_SET_ELEM_LIST_SET, set);
    let parts = found(socket.list(asked, |frame| decode(&frame)))?;
    Ok(parts.unwrap_or_default().into_iter().flatten().collect())
}

//! Rules as the kernel lists them.

use super::abi::*;
use super::table::{message, Table, HEADER};
use super::userdata;
use super::value::Verdict;
use crate::attr::{self, Attr};
use crate::error::{found, Result};
use crate::message::Frame;
use crate::socket::Socket;

/// A rule as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleInfo {
    /// Its handle, by which it is deleted.
    pub handle: u64,
    /// Its comment, from nft or iptables.
    pub comment: Option<String>,
    /// The expressions: name and encoded content.
    pub exprs: Vec<(String, Vec<u8>)>,
}

/// The expressions in a rule's attributes: name and encoded content.
pub(super) fn instructions(body: &[u8]) -> Vec<(String, Vec<u8>)> {
    let one = |attr: Attr<'_>| {
        let name = attr::find(attr.value, NFTA_EXPR_NAME)?.string();
        let data = attr::find(attr.value, NFTA_EXPR_DATA).map_or(&[][..], |a| a.value);
        Some((name, data.to_vec()))
    };
    let list = attr::find(body, NFTA_RULE_EXPRESSIONS);
    list.map(|list| list.nested().filter_map(one).collect()).unwrap_or_default()
}

impl RuleInfo {
    fn decode(frame: &Frame<'_>) -> Option<RuleInfo> {
        let body = frame.body.get(HEADER..)?;
        let exprs = instructions(body);
        let comment = attr::find(body, NFTA_RULE_USERDATA).and_then(|a| userdata::decode(a.value));
        Some(RuleInfo {
            handle: attr::find(body, NFTA_RULE_HANDLE)?.be64()?,
            comment: comment.or_else(|| exprs.iter().find_map(xt_comment)),
            exprs,
        })
    }

    /// The parts that distinguish it from other rules: its expressions, compared values, sets and verdicts. The kernel
    /// encodes the rest differently from the request.
    pub(super) fn essence(&self) -> (Vec<(&str, Vec<u8>)>, Vec<Verdict>) {
        let content = |name: &str, data: &[u8]| match name {
            "cmp" => attr::find(data, NFTA_CMP_DATA)
                .and_then(|data| attr::find(data.value, NFTA_DATA_VALUE))
                .map_or(Vec::new(), |value| value.value.to_vec()),
            "range" => [NFTA_RANGE_FROM_DATA, NFTA_RANGE_TO_DATA]
                .into_iter()
                .filter_map(|kind| attr::find(attr::find(data, kind)?.value, NFTA_DATA_VALUE))
                .flat_map(|value| value.value.to_vec())
                .collect(),
            "lookup" => {
                let inverted =
                    attr::find(data, NFTA_LOOKUP_FLAGS).and_then(|flags| flags.be32()).unwrap_or(0);
                let set = attr::find(data, NFTA_LOOKUP_SET).map_or(String::new(), |set| set.string());
                format!("{set} {inverted}").into_bytes()
            }
            "immediate" => attr::find(data, NFTA_IMMEDIATE_DATA)
                .and_then(|data| attr::find(data.value, NFTA_DATA_VALUE))
                .map_or(Vec::new(), |value| value.value.to_vec()),
            "payload" => numbers(data, &[NFTA_PAYLOAD_BASE, NFTA_PAYLOAD_OFFSET, NFTA_PAYLOAD_LEN]),
            "fib" => numbers(data, &[NFTA_FIB_RESULT, NFTA_FIB_FLAGS]),
            "numgen" => numbers(data, &[NFTA_NG_MODULUS, NFTA_NG_OFFSET]),
            "dynset" => {
                let map = attr::find(data, NFTA_DYNSET_SET_NAME).map_or(String::new(), |map| map.string());
                let timeout = attr::find(data, NFTA_DYNSET_TIMEOUT).and_then(|timeout| timeout.be64());
                format!("{map} {timeout:?}").into_bytes()
            }
            "limit" => numbers(data, &[NFTA_LIMIT_RATE, NFTA_LIMIT_UNIT, NFTA_LIMIT_BURST]),
            "log" => {
                let group = attr::find(data, NFTA_LOG_GROUP).and_then(|group| group.be16());
                let prefix = attr::find(data, NFTA_LOG_PREFIX).map(|prefix| prefix.string());
                format!("{group:?} {prefix:?}").into_bytes()
            }
            "masq" => {
                let flags = attr::find(data, NFTA_MASQ_FLAGS).and_then(|flags| flags.be32()).unwrap_or(0);
                flags.to_be_bytes().to_vec()
            }
            _ => Vec::new(),
        };
        let exprs = self.exprs.iter().map(|(name, data)| (name.as_str(), content(name, data)));
        (exprs.collect(), self.verdicts().collect())
    }

    /// The verdicts of the rule, without those of maps.
    pub fn verdicts(&self) -> impl Iterator<Item = Verdict> + '_ {
        self.exprs.iter().filter(|(name, _)| name == "immediate").filter_map(|(_, data)| {
            let data = attr::find(data, NFTA_IMMEDIATE_DATA)?;
            Verdict::decode(&attr::find(data.value, NFTA_DATA_VERDICT)?)
        })
    }

    /// Whether it jumps to this chain.
    pub fn jumps_to(&self, chain: &str) -> bool {
        self.verdicts().any(|verdict| verdict.chain() == Some(chain))
    }

    /// Whether it compares a field with exactly this value.
    pub fn compares_with(&self, value: &[u8]) -> bool {
        self.exprs.iter().filter(|(name, _)| name == "cmp").any(|(_, data)| {
            let data = attr::find(data, NFTA_CMP_DATA).and_then(|d| attr::find(d.value, NFTA_DATA_VALUE));
            data.is_some_and(|d| d.value == value)
        })
    }
}

/// The values of these attributes.
fn numbers(data: &[u8], kinds: &[u16]) -> Vec<u8> {
    let found = kinds.iter().filter_map(|kind| attr::find(data, *kind));
    found.flat_map(|number| number.value.to_vec()).collect()
}

/// The comment of an iptables rule: a match extension that always matches.
fn xt_comment((name, data): &(String, Vec<u8>)) -> Option<String> {
    let is_comment = name == "match" && attr::find(data, NFTA_MATCH_NAME)?.string() == "comment";
    is_comment.then(|| attr::find(data, NFTA_MATCH_INFO).map(|a| a.string()))?
}

/// The rules of a chain in order; empty if the chain or table is missing.
pub fn list_rules(socket: &mut Socket, table: &Table, chain: &str) -> Result<Vec<RuleInfo>> {
    let doing = format!("list the rules of chain {chain} of table {table}");
    let request = message(NFT_MSG_GETRULE, 0, table.family.number(), doing)
        .string(NFTA_RULE_TABLE, &table.name)
        .string(NFTA_RULE_CHAIN, chain);
    Ok(found(socket.list(request, |frame| RuleInfo::decode(&frame)))?.unwrap_or_default())
}

//! The difference between a transaction and the kernel: which of its tables, sets, chains and rules are missing.

use std::collections::HashMap;

use super::abi::*;
use super::chain::{get_chain, Base};
use super::listed_rule::{instructions, list_rules, RuleInfo};
use super::set::has_set;
use super::table::{has_table, Family, Table, HEADER};
use super::transaction::Transaction;
use crate::attr;
use crate::error::Result;
use crate::message;
use crate::socket::Socket;

/// An object that a transaction creates.
enum Object {
    Table,
    Set(String),
    Chain(String, Option<Base>),
    /// A flushed chain: all of its rules come from the transaction.
    Flushed(String),
    Rule(String, RuleInfo),
}

impl Transaction {
    /// The objects of this transaction that the kernel lacks, as texts: tables, sets, chains, and the rules of chains
    /// that it flushes. Elements are not checked. The content of a missing table is not listed.
    pub fn absent(&self, socket: &mut Socket) -> Result<Vec<String>> {
        let objects: Vec<(Table, Object)> =
            self.bodies().filter_map(|(kind, body)| read(kind, body)).collect();
        let mut rules: HashMap<(&Table, &str), Vec<&RuleInfo>> = HashMap::new();
        for (table, one) in &objects {
            if let Object::Rule(chain, rule) = one {
                rules.entry((table, chain)).or_default().push(rule);
            }
        }
        let mut absent: Vec<String> = Vec::new();
        let mut missing: Vec<&Table> = Vec::new();
        for (table, one) in objects.iter() {
            if missing.contains(&table) {
                continue;
            }
            match one {
                Object::Table if !has_table(socket, table)? => {
                    missing.push(table);
                    absent.push(format!("table {table} is missing"));
                }
                Object::Set(name) if !has_set(socket, table, name)? => {
                    absent.push(format!("set {name} of table {table} is missing"));
                }
                Object::Chain(name, base) => absent.extend(wrong_chain(socket, table, name, base)?),
                Object::Flushed(name) if get_chain(socket, table, name)?.is_some() => {
                    let wanted = rules.get(&(table, name.as_str())).map_or(&[][..], Vec::as_slice);
                    absent.extend(wrong_rules(socket, table, name, wanted)?);
                }
                _ => {}
            }
        }
        Ok(absent)
    }

    /// The kind and body of each message.
    fn bodies(&self) -> impl Iterator<Item = (u16, &[u8])> {
        self.messages.iter().filter_map(|message| {
            let kind = u16::from_ne_bytes(message.bytes.get(4..6)?.try_into().ok()?);
            Some((kind & 0xff, message.bytes.get(message::HEADER..)?))
        })
    }
}

fn wrong_chain(
    socket: &mut Socket,
    table: &Table,
    name: &str,
    base: &Option<Base>,
) -> Result<Option<String>> {
    Ok(match get_chain(socket, table, name)? {
        None => Some(format!("chain {name} of table {table} is missing")),
        Some(found) if found.base != *base => {
            Some(format!("chain {name} of table {table} has another hook, priority or policy"))
        }
        Some(_) => None,
    })
}

/// Compares rules without their counters.
fn wrong_rules(
    socket: &mut Socket,
    table: &Table,
    chain: &str,
    wanted: &[&RuleInfo],
) -> Result<Option<String>> {
    let found = list_rules(socket, table, chain)?;
    if found.iter().map(RuleInfo::essence).eq(wanted.iter().map(|rule| rule.essence())) {
        return Ok(None);
    }
    let state = if found.is_empty() { "is empty" } else { "has other rules" };
    Ok(Some(format!("chain {chain} of table {table} {state}")))
}

/// Reads one message of a transaction back.
fn read(kind: u16, body: &[u8]) -> Option<(Table, Object)> {
    let family = Family::from_number(*body.first()?)?;
    let attrs = body.get(HEADER..)?;
    let text = |kind: u16| attr::find(attrs, kind).map(|found| found.string());
    let table = |kind: u16| Some(Table::new(family, text(kind)?));
    Some(match kind {
        NFT_MSG_NEWTABLE => (table(NFTA_TABLE_NAME)?, Object::Table),
        NFT_MSG_NEWSET => (table(NFTA_SET_TABLE)?, Object::Set(text(NFTA_SET_NAME)?)),
        NFT_MSG_NEWCHAIN => {
            (table(NFTA_CHAIN_TABLE)?, Object::Chain(text(NFTA_CHAIN_NAME)?, Base::decode(attrs)))
        }
        NFT_MSG_DELRULE if attr::find(attrs, NFTA_RULE_HANDLE).is_none() => {
            (table(NFTA_RULE_TABLE)?, Object::Flushed(text(NFTA_RULE_CHAIN)?))
        }
        NFT_MSG_NEWRULE => {
            let rule = RuleInfo { handle: 0, comment: None, exprs: instructions(attrs) };
            (table(NFTA_RULE_TABLE)?, Object::Rule(text(NFTA_RULE_CHAIN)?, rule))
        }
        _ => return None,
    })
}

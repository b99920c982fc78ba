//! Looking for what a transaction would make: which of its tables, sets, chains and rules are not there.

use std::collections::HashMap;

use super::abi::*;
use super::chain::Base;
use super::rule::{instructions, RuleInfo};
use super::{get_chain, has_set, has_table, list_rules, Family, Table, Transaction, HEADER};
use crate::attr;
use crate::error::Result;
use crate::message;
use crate::socket::Socket;

/// One thing that a transaction makes.
enum Made {
    Table,
    Set(String),
    Chain(String, Option<Base>),
    /// A chain that is emptied, so that all of its rules are the transaction's.
    Flushed(String),
    Rule(String, RuleInfo),
}

impl Transaction {
    /// What it would make and the kernel does not have, in words: tables, sets, chains, and the rules of those
    /// chains that it empties first. Elements are not looked at. Nothing is said of what is in a table that is
    /// missing itself.
    pub fn absent(&self, socket: &mut Socket) -> Result<Vec<String>> {
        let made: Vec<(Table, Made)> = self.bodies().filter_map(|(kind, body)| read(kind, body)).collect();
        let mut rules: HashMap<(&Table, &str), Vec<&RuleInfo>> = HashMap::new();
        for (table, one) in &made {
            if let Made::Rule(chain, rule) = one {
                rules.entry((table, chain)).or_default().push(rule);
            }
        }
        let mut absent: Vec<String> = Vec::new();
        let mut lost: Vec<&Table> = Vec::new();
        for (table, one) in made.iter() {
            if lost.contains(&table) {
                continue;
            }
            match one {
                Made::Table if !has_table(socket, table)? => {
                    lost.push(table);
                    absent.push(format!("table {table} is missing"));
                }
                Made::Set(name) if !has_set(socket, table, name)? => {
                    absent.push(format!("set {name} of table {table} is missing"));
                }
                Made::Chain(name, base) => absent.extend(wrong_chain(socket, table, name, base)?),
                Made::Flushed(name) if get_chain(socket, table, name)?.is_some() => {
                    let wanted = rules.get(&(table, name.as_str())).map_or(&[][..], Vec::as_slice);
                    absent.extend(wrong_rules(socket, table, name, wanted)?);
                }
                _ => {}
            }
        }
        Ok(absent)
    }

    /// Kind and content of each message.
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
        Some(found) if found.base != *base => Some(format!("chain {name} of table {table} hangs elsewhere")),
        Some(_) => None,
    })
}

/// Rules are compared by what they look at and what they lead to; how often they counted is their own business.
fn wrong_rules(
    socket: &mut Socket,
    table: &Table,
    chain: &str,
    wanted: &[&RuleInfo],
) -> Result<Option<String>> {
    let found = list_rules(socket, table, chain)?;
    if found.iter().map(RuleInfo::gist).eq(wanted.iter().map(|rule| rule.gist())) {
        return Ok(None);
    }
    Ok(Some(match found.is_empty() {
        true => format!("chain {chain} of table {table} is empty"),
        false => format!("chain {chain} of table {table} has other rules"),
    }))
}

/// Reads one message of a transaction back.
fn read(kind: u16, body: &[u8]) -> Option<(Table, Made)> {
    let family = Family::from_number(*body.first()?)?;
    let attrs = body.get(HEADER..)?;
    let text = |kind: u16| attr::find(attrs, kind).map(|found| found.string());
    let place = |kind: u16| Some(Table::new(family, text(kind)?));
    Some(match kind {
        NFT_MSG_NEWTABLE => (place(NFTA_TABLE_NAME)?, Made::Table),
        NFT_MSG_NEWSET => (place(NFTA_SET_TABLE)?, Made::Set(text(NFTA_SET_NAME)?)),
        NFT_MSG_NEWCHAIN => {
            (place(NFTA_CHAIN_TABLE)?, Made::Chain(text(NFTA_CHAIN_NAME)?, Base::decode(attrs)))
        }
        NFT_MSG_DELRULE if attr::find(attrs, NFTA_RULE_HANDLE).is_none() => {
            (place(NFTA_RULE_TABLE)?, Made::Flushed(text(NFTA_RULE_CHAIN)?))
        }
        NFT_MSG_NEWRULE => {
            let rule = RuleInfo { handle: 0, comment: None, exprs: instructions(attrs) };
            (place(NFTA_RULE_TABLE)?, Made::Rule(text(NFTA_RULE_CHAIN)?, rule))
        }
        _ => return None,
    })
}

//! Transactions: changes that the kernel applies together or not at all.
//!
//! `add_…` keeps an existing object, `create_…` fails with "file exists", `delete_…` fails with "no such file or
//! directory". If one change fails, the kernel applies none.

use super::abi::*;
use super::chain::Base;
use super::element::{self, Data, Element};
use super::rule::Rule;
use super::set::Set;
use super::table::{has_table, message, Table};
use crate::error::Result;
use crate::message::Message;
use crate::socket::Socket;

const ADD: u16 = libc::NLM_F_CREATE as u16;
const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
const APPEND: u16 = (libc::NLM_F_CREATE | libc::NLM_F_APPEND) as u16;

/// Changes to nf_tables that are committed together.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    generation: Option<u32>,
    pub(super) messages: Vec<Message>,
    sets: u32,
}

impl Transaction {
    /// An empty transaction.
    pub fn new() -> Transaction {
        Transaction::default()
    }

    /// An empty transaction whose commit fails if the rules are no longer those of this
    /// [generation](super::generation); see [`changed_meanwhile`](super::changed_meanwhile).
    pub fn at_generation(generation: u32) -> Transaction {
        Transaction::new().only_at(generation)
    }

    /// The same changes, bound to a [generation](Transaction::at_generation).
    pub fn only_at(self, generation: u32) -> Transaction {
        Transaction { generation: Some(generation), ..self }
    }

    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The number of changes.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Creates a table unless it exists.
    pub fn add_table(&mut self, table: &Table) {
        self.table(NFT_MSG_NEWTABLE, ADD, table, "add");
    }

    /// Creates a table; fails if it exists.
    pub fn create_table(&mut self, table: &Table) {
        self.table(NFT_MSG_NEWTABLE, CREATE, table, "create");
    }

    /// Deletes a table with its content.
    pub fn delete_table(&mut self, table: &Table) {
        self.table(NFT_MSG_DELTABLE, 0, table, "delete");
    }

    fn table(&mut self, kind: u16, flags: u16, table: &Table, verb: &str) {
        let doing = format!("{verb} table {table}");
        self.messages
            .push(message(kind, flags, table.family.number(), doing).string(NFTA_TABLE_NAME, &table.name));
    }

    /// Creates a regular chain unless it exists.
    pub fn add_chain(&mut self, table: &Table, name: &str) {
        let message = chain_message(NFT_MSG_NEWCHAIN, ADD, table, name, "add");
        self.messages.push(message);
    }

    /// Creates a regular chain; fails if it exists.
    pub fn create_chain(&mut self, table: &Table, name: &str) {
        let message = chain_message(NFT_MSG_NEWCHAIN, CREATE, table, name, "create");
        self.messages.push(message);
    }

    /// Creates a base chain unless it exists.
    pub fn add_base_chain(&mut self, table: &Table, name: &str, base: &Base) {
        let message = chain_message(NFT_MSG_NEWCHAIN, ADD, table, name, "add");
        self.messages.push(base.encode(message));
    }

    /// Creates a base chain; fails if it exists.
    pub fn create_base_chain(&mut self, table: &Table, name: &str, base: &Base) {
        let message = chain_message(NFT_MSG_NEWCHAIN, CREATE, table, name, "create");
        self.messages.push(base.encode(message));
    }

    /// Deletes a chain. No rule may jump to it.
    pub fn delete_chain(&mut self, table: &Table, name: &str) {
        let message = chain_message(NFT_MSG_DELCHAIN, 0, table, name, "delete");
        self.messages.push(message);
    }

    /// Deletes all rules of a chain.
    pub fn flush_chain(&mut self, table: &Table, chain: &str) {
        let message = rule_message(NFT_MSG_DELRULE, 0, table, chain, "delete all rules");
        self.messages.push(message);
    }

    /// Appends a rule to a chain.
    pub fn add_rule(&mut self, table: &Table, chain: &str, rule: &Rule) {
        let message = rule_message(NFT_MSG_NEWRULE, APPEND, table, chain, "add a rule");
        self.messages.push(rule.encode(message));
    }

    /// Inserts a rule at the beginning of a chain.
    pub fn insert_rule(&mut self, table: &Table, chain: &str, rule: &Rule) {
        let message = rule_message(NFT_MSG_NEWRULE, ADD, table, chain, "insert a rule");
        self.messages.push(rule.encode(message));
    }

    /// Deletes a rule by its handle.
    pub fn delete_rule(&mut self, table: &Table, chain: &str, handle: u64) {
        let message = rule_message(NFT_MSG_DELRULE, 0, table, chain, &format!("delete rule {handle}"));
        self.messages.push(message.be64(NFTA_RULE_HANDLE, handle));
    }

    /// Creates a set or map unless it exists.
    pub fn add_set(&mut self, table: &Table, set: &Set<'_>) {
        self.set(ADD, table, set, "add");
    }

    /// Creates a set or map; fails if it exists.
    pub fn create_set(&mut self, table: &Table, set: &Set<'_>) {
        self.set(CREATE, table, set, "create");
    }

    fn set(&mut self, flags: u16, table: &Table, set: &Set<'_>, verb: &str) {
        self.sets += 1;
        let doing = format!("{verb} set {} of table {table}", set.name);
        let message = message(NFT_MSG_NEWSET, flags, table.family.number(), doing);
        self.messages.push(set.encode(message.string(NFTA_SET_TABLE, &table.name), self.sets));
    }

    /// Deletes a set. No rule may use it.
    pub fn delete_set(&mut self, table: &Table, name: &str) {
        let doing = format!("delete set {name} of table {table}");
        let message = message(NFT_MSG_DELSET, 0, table.family.number(), doing);
        self.messages.push(message.string(NFTA_SET_TABLE, &table.name).string(NFTA_SET_NAME, name));
    }

    /// Adds an element. An existing element with the same key and data keeps its comment; one with other data is an
    /// error.
    pub fn add_element(&mut self, table: &Table, set: &str, element: &Element) {
        self.messages.push(element_message(NFT_MSG_NEWSETELEM, ADD, table, set, element));
    }

    /// Adds an element; fails if the key exists.
    pub fn create_element(&mut self, table: &Table, set: &str, element: &Element) {
        self.messages.push(element_message(NFT_MSG_NEWSETELEM, CREATE, table, set, element));
    }

    /// Deletes the element with the key of this element.
    pub fn delete_element(&mut self, table: &Table, set: &str, element: &Element) {
        let key = Element { data: Data::None, comment: None, ..element.clone() };
        self.messages.push(element_message(NFT_MSG_DELSETELEM, 0, table, set, &key));
    }

    /// Adds many elements with few messages. Existing elements with the same data stay.
    pub fn add_elements(&mut self, table: &Table, set: &str, elements: &[Element]) {
        self.messages.extend(element_messages(NFT_MSG_NEWSETELEM, ADD, table, set, elements));
    }

    /// Deletes the elements with the keys of these elements.
    pub fn delete_elements(&mut self, table: &Table, set: &str, elements: &[Element]) {
        let keys = |element: &Element| Element { data: Data::None, comment: None, ..element.clone() };
        let keys: Vec<Element> = elements.iter().map(keys).collect();
        self.messages.extend(element_messages(NFT_MSG_DELSETELEM, 0, table, set, &keys));
    }

    /// Commits the changes. An empty transaction does nothing.
    pub fn commit(self, socket: &mut Socket) -> Result<()> {
        if self.messages.is_empty() {
            return Ok(());
        }
        let bracket = |kind, doing| Message::new(kind, 0, doing).raw(&[0, 0, 0, NFNL_SUBSYS_NFTABLES as u8]);
        let begin = bracket(NFNL_MSG_BATCH_BEGIN, "begin a transaction of nf_tables")
            .maybe(self.generation, |m, generation| m.be32(NFNL_BATCH_GENID, generation));
        let mut messages = Vec::with_capacity(self.messages.len() + 2);
        messages.push(begin);
        messages.extend(self.messages);
        messages.push(bracket(NFNL_MSG_BATCH_END, "commit a transaction of nf_tables"));
        socket.transaction(messages)
    }
}

fn chain_message(kind: u16, flags: u16, table: &Table, name: &str, verb: &str) -> Message {
    message(kind, flags, table.family.number(), format!("{verb} chain {name} of table {table}"))
        .string(NFTA_CHAIN_TABLE, &table.name)
        .string(NFTA_CHAIN_NAME, name)
}

fn rule_message(kind: u16, flags: u16, table: &Table, chain: &str, verb: &str) -> Message {
    message(kind, flags, table.family.number(), format!("{verb} in chain {chain} of table {table}"))
        .string(NFTA_RULE_TABLE, &table.name)
        .string(NFTA_RULE_CHAIN, chain)
}

fn element_message(kind: u16, flags: u16, table: &Table, set: &str, element: &Element) -> Message {
    let (verb, word) = if kind == NFT_MSG_DELSETELEM { ("delete", "from") } else { ("add", "to") };
    let doing = format!("{verb} {} {word} set {set} of table {table}", element.key);
    let message = message(kind, flags, table.family.number(), doing);
    element::encode(message, table, set, std::slice::from_ref(element))
}

/// Several messages, because the length of the attribute with the elements is a 16-bit number.
fn element_messages<'a>(
    kind: u16,
    flags: u16,
    table: &'a Table,
    set: &'a str,
    elements: &'a [Element],
) -> impl Iterator<Item = Message> + 'a {
    const BATCH: usize = 128;
    let (verb, word) = if kind == NFT_MSG_DELSETELEM { ("delete", "from") } else { ("add", "to") };
    elements.chunks(BATCH).map(move |some| {
        let doing = format!("{verb} {} elements {word} set {set} of table {table}", some.len());
        let message = message(kind, flags, table.family.number(), doing);
        element::encode(message, table, set, some)
    })
}

/// Deletes the table; returns whether it existed.
pub fn remove_table(socket: &mut Socket, table: &Table) -> Result<bool> {
    if !has_table(socket, table)? {
        return Ok(false);
    }
    let mut change = Transaction::new();
    change.delete_table(table);
    match change.commit(socket) {
        Err(error) if error.is_gone() => Ok(false),
        other => other.map(|()| true),
    }
}

//! Transactions: changes that happen together or not at all.
//!
//! `add_…` keeps what is there, `create_…` fails with "file exists", `delete_…` fails with "no such file or
//! directory"; a failure of one undoes all.

use super::abi::*;
use super::chain::Base;
use super::element::{self, Data, Element};
use super::rule::Rule;
use super::set::Set;
use super::{message, Table};
use crate::error::Result;
use crate::message::Message;
use crate::socket::Socket;

const ADD: u16 = libc::NLM_F_CREATE as u16;
const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
const APPEND: u16 = (libc::NLM_F_CREATE | libc::NLM_F_APPEND) as u16;

/// Changes to nf_tables that are committed as one.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    generation: Option<u32>,
    pub(super) messages: Vec<Message>,
    sets: u32,
}

impl Transaction {
    /// No changes yet.
    pub fn new() -> Transaction {
        Transaction::default()
    }

    /// No changes yet, and none at all if the rules are no longer those of this
    /// [generation](super::generation): the commit fails then, see
    /// [`changed_meanwhile`](super::changed_meanwhile).
    pub fn at_generation(generation: u32) -> Transaction {
        Transaction::new().only_at(generation)
    }

    /// The same changes, as those [at this generation](Transaction::at_generation).
    pub fn only_at(self, generation: u32) -> Transaction {
        Transaction { generation: Some(generation), ..self }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// How many changes there are.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Makes a table, unless it is there.
    pub fn add_table(&mut self, table: &Table) {
        self.table(NFT_MSG_NEWTABLE, ADD, table, "add");
    }

    /// Makes a table; fails if it is there.
    pub fn create_table(&mut self, table: &Table) {
        self.table(NFT_MSG_NEWTABLE, CREATE, table, "create");
    }

    /// Deletes a table with all that is in it.
    pub fn delete_table(&mut self, table: &Table) {
        self.table(NFT_MSG_DELTABLE, 0, table, "delete");
    }

    fn table(&mut self, kind: u16, flags: u16, table: &Table, verb: &str) {
        let doing = format!("{verb} table {table}");
        self.messages
            .push(message(kind, flags, table.family.number(), doing).string(NFTA_TABLE_NAME, &table.name));
    }

    /// Makes a chain that is jumped to, unless it is there.
    pub fn add_chain(&mut self, table: &Table, name: &str) {
        let message = self.chain(NFT_MSG_NEWCHAIN, ADD, (table, name), "add");
        self.messages.push(message);
    }

    /// Makes a chain that is jumped to; fails if it is there.
    pub fn create_chain(&mut self, table: &Table, name: &str) {
        let message = self.chain(NFT_MSG_NEWCHAIN, CREATE, (table, name), "create");
        self.messages.push(message);
    }

    /// Makes a base chain, unless it is there.
    pub fn add_base_chain(&mut self, table: &Table, name: &str, base: &Base) {
        let message = self.chain(NFT_MSG_NEWCHAIN, ADD, (table, name), "add");
        self.messages.push(base.encode(message));
    }

    /// Makes a base chain; fails if it is there.
    pub fn create_base_chain(&mut self, table: &Table, name: &str, base: &Base) {
        let message = self.chain(NFT_MSG_NEWCHAIN, CREATE, (table, name), "create");
        self.messages.push(base.encode(message));
    }

    /// Deletes a chain, to which no rule may jump any more.
    pub fn delete_chain(&mut self, table: &Table, name: &str) {
        let message = self.chain(NFT_MSG_DELCHAIN, 0, (table, name), "delete");
        self.messages.push(message);
    }

    fn chain(&mut self, kind: u16, flags: u16, (table, name): (&Table, &str), verb: &str) -> Message {
        message(kind, flags, table.family.number(), format!("{verb} chain {name} of table {table}"))
            .string(NFTA_CHAIN_TABLE, &table.name)
            .string(NFTA_CHAIN_NAME, name)
    }

    /// Deletes all rules of a chain.
    pub fn flush_chain(&mut self, table: &Table, chain: &str) {
        let message = self.rule(NFT_MSG_DELRULE, 0, (table, chain), "delete all rules");
        self.messages.push(message);
    }

    /// Puts a rule at the end of a chain.
    pub fn add_rule(&mut self, table: &Table, chain: &str, rule: &Rule) {
        let message = self.rule(NFT_MSG_NEWRULE, APPEND, (table, chain), "add a rule");
        self.messages.push(rule.encode(message));
    }

    /// Puts a rule at the beginning of a chain.
    pub fn insert_rule(&mut self, table: &Table, chain: &str, rule: &Rule) {
        let message = self.rule(NFT_MSG_NEWRULE, ADD, (table, chain), "insert a rule");
        self.messages.push(rule.encode(message));
    }

    /// Deletes a rule by its number.
    pub fn delete_rule(&mut self, table: &Table, chain: &str, handle: u64) {
        let message = self.rule(NFT_MSG_DELRULE, 0, (table, chain), &format!("delete rule {handle}"));
        self.messages.push(message.be64(NFTA_RULE_HANDLE, handle));
    }

    fn rule(&mut self, kind: u16, flags: u16, (table, chain): (&Table, &str), verb: &str) -> Message {
        message(kind, flags, table.family.number(), format!("{verb} in chain {chain} of table {table}"))
            .string(NFTA_RULE_TABLE, &table.name)
            .string(NFTA_RULE_CHAIN, chain)
    }

    /// Makes a set or map, unless it is there.
    pub fn add_set(&mut self, table: &Table, set: &Set<'_>) {
        self.set(ADD, table, set, "add");
    }

    /// Makes a set or map; fails if it is there.
    pub fn create_set(&mut self, table: &Table, set: &Set<'_>) {
        self.set(CREATE, table, set, "create");
    }

    fn set(&mut self, flags: u16, table: &Table, set: &Set<'_>, verb: &str) {
        self.sets += 1;
        let doing = format!("{verb} set {} of table {table}", set.name);
        let message = message(NFT_MSG_NEWSET, flags, table.family.number(), doing);
        self.messages.push(set.encode(message.string(NFTA_SET_TABLE, &table.name), self.sets));
    }

    /// Deletes a set, which no rule may use any more.
    pub fn delete_set(&mut self, table: &Table, name: &str) {
        let doing = format!("delete set {name} of table {table}");
        let message = message(NFT_MSG_DELSET, 0, table.family.number(), doing);
        self.messages.push(message.string(NFTA_SET_TABLE, &table.name).string(NFTA_SET_NAME, name));
    }

    /// Adds an element. One with the same key and the same data stays as it is, with its own comment; one
    /// with other data is an error.
    pub fn add_element(&mut self, table: &Table, set: &str, element: &Element) {
        self.elements(NFT_MSG_NEWSETELEM, ADD, (table, set), element);
    }

    /// Adds an element; fails if the key is there.
    pub fn create_element(&mut self, table: &Table, set: &str, element: &Element) {
        self.elements(NFT_MSG_NEWSETELEM, CREATE, (table, set), element);
    }

    /// Deletes the element with this element's key.
    pub fn delete_element(&mut self, table: &Table, set: &str, element: &Element) {
        let key = Element { data: Data::None, comment: None, ..element.clone() };
        self.elements(NFT_MSG_DELSETELEM, 0, (table, set), &key);
    }

    fn elements(&mut self, kind: u16, flags: u16, (table, set): (&Table, &str), element: &Element) {
        let (verb, word) = if kind == NFT_MSG_DELSETELEM { ("delete", "from") } else { ("add", "to") };
        let doing = format!("{verb} {} {word} set {set} of table {table}", element.key);
        let message = message(kind, flags, table.family.number(), doing);
        self.messages.push(element::encode(message, table, set, std::slice::from_ref(element)));
    }

    /// Adds many elements, with few messages. Those that are there with the same data stay.
    pub fn add_elements(&mut self, table: &Table, set: &str, elements: &[Element]) {
        self.many(NFT_MSG_NEWSETELEM, ADD, (table, set), elements);
    }

    /// Deletes the elements with these elements' keys.
    pub fn delete_elements(&mut self, table: &Table, set: &str, elements: &[Element]) {
        let keys = |element: &Element| Element { data: Data::None, comment: None, ..element.clone() };
        let keys: Vec<Element> = elements.iter().map(keys).collect();
        self.many(NFT_MSG_DELSETELEM, 0, (table, set), &keys);
    }

    /// A list of elements is an attribute, whose length is a number of 16 bits.
    fn many(&mut self, kind: u16, flags: u16, (table, set): (&Table, &str), elements: &[Element]) {
        const AT_ONCE: usize = 128;
        let (verb, word) = if kind == NFT_MSG_DELSETELEM { ("delete", "from") } else { ("add", "to") };
        for some in elements.chunks(AT_ONCE) {
            let doing = format!("{verb} {} elements {word} set {set} of table {table}", some.len());
            let message = message(kind, flags, table.family.number(), doing);
            self.messages.push(element::encode(message, table, set, some));
        }
    }

    /// Carries the changes out. An empty transaction does nothing.
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

//! nf_tables: the kernel's firewall, changed by transactions.
//!
//! A *table* contains *chains* of *rules*, and *sets*. A base chain is attached to a hook of the packet path. Rules
//! look up addresses, ports and devices in sets and maps, in constant time for any number of elements. A
//! [`Transaction`] collects changes and commits them together: the kernel applies all or none, and a packet sees the
//! old or the new rules, never a mixture.
//!
//! ```no_run
//! use podwire_netlink::nft::{self, Element, Family, Set, Table, Transaction, Type, Value};
//! let mut nft = podwire_netlink::Socket::netfilter()?;
//! let table = Table::named(Family::Inet, "example");
//! let mut change = Transaction::new();
//! change.add_table(&table);
//! change.add_set(&table, &Set::of("pods", &[Type::Ipv4]));
//! change.create_element(&table, "pods", &Element::key(Value::ip([10, 1, 0, 5].into())).comment("web"));
//! change.commit(&mut nft)?;
//! assert!(nft::get_element(&mut nft, &table, "pods", &Value::ip([10, 1, 0, 5].into()))?.is_some());
//! # Ok::<(), podwire_netlink::Error>(())
//! ```
//!
//! Keep a socket open that deleted objects: closing it waits for an RCU grace period.

mod abi;
mod absence;
mod chain;
mod element;
pub mod expr;
mod field;
mod ip_terms;
mod listed_rule;
mod retry;
mod rule;
mod set;
mod table;
mod transaction;
mod userdata;
mod value;

pub use chain::{get_chain, list_chains, Base, ChainInfo, ChainKind, Hook, Policy};
pub use element::{get_element, list_counts, list_elements, Count, Data, Element};
pub use field::Field;
pub use ip_terms::IpTerms;
pub use listed_rule::{list_rules, RuleInfo};
pub use retry::Retry;
pub use rule::Rule;
pub use set::{has_set, list_sets, Set, Type};
pub use table::{
    announced_generation, changed_meanwhile, generation, has_table, is_supported, list_tables, subject,
    Family, Table, GROUP,
};
pub use transaction::{remove_table, Transaction};
pub use userdata::MAX_COMMENT;
pub use value::{Value, Verdict};

//! Options of port mappings, and the table that they need.
//!
//! Conditions apply to a whole network, so they are part of a rule. Mappings with different conditions are in different
//! tables: no network can change the conditions of another.

use std::fmt;

use ipnet::IpNet;
use podwire_netlink::nft::{Family, Field, Rule, Table};

use super::super::naming::nft_family;
use crate::error::{Error, Result};
use crate::owner::hash;

const PREFIX: &str = "podwire_ports";

/// Which connections to the pod get the node's address as source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Snat {
    /// None. Then neither the node's loopback nor pods of the same network can use the port.
    Off,
    /// Connections from the pod's network and the node's loopback.
    #[default]
    Local,
    /// All.
    All,
}

/// Settings for all port mappings of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Options {
    /// Which connections get the node's address as source.
    pub snat: Snat,
    /// The conditions for IPv4 packets; all must hold.
    pub conditions_v4: Vec<Condition>,
    /// The conditions for IPv6 packets; all must hold.
    pub conditions_v6: Vec<Condition>,
}

/// A condition that a packet must meet to be mapped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Condition {
    /// The part of the packet.
    pub part: Part,
    /// Whether the condition is inverted.
    pub negated: bool,
}

/// A part of a packet, with its expected value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The source is in this prefix.
    Source(IpNet),
    /// The destination is in this prefix.
    Destination(IpNet),
    /// It arrived on this device.
    Interface(String),
}

impl Condition {
    /// Adds the condition to a rule for packets of this family.
    pub(super) fn add_to(&self, rule: Rule) -> Rule {
        match &self.part {
            Part::Source(net) => {
                rule.prefix(Field::source(&net.addr()), net.addr(), net.prefix_len(), !self.negated)
            }
            Part::Destination(net) => {
                rule.prefix(Field::destination(&net.addr()), net.addr(), net.prefix_len(), !self.negated)
            }
            Part::Interface(name) => rule.interface(Field::InterfaceIn, name, !self.negated),
        }
    }

    fn fits(&self, family: Family) -> bool {
        match &self.part {
            Part::Source(net) | Part::Destination(net) => nft_family(net) == family,
            Part::Interface(_) => true,
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not = if self.negated { "!= " } else { "" };
        match &self.part {
            Part::Source(net) => write!(f, "saddr {not}{}", net.trunc()),
            Part::Destination(net) => write!(f, "daddr {not}{}", net.trunc()),
            Part::Interface(name) => write!(f, "iifname {not}{name}"),
        }
    }
}

/// Fails for an IPv6 prefix among the conditions for IPv4, and vice versa.
pub(super) fn check(options: &Options) -> Result<()> {
    for (family, conditions) in [(Family::Ip, &options.conditions_v4), (Family::Ip6, &options.conditions_v6)]
    {
        if let Some(wrong) = conditions.iter().find(|condition| !condition.fits(family)) {
            return Err(Error::Other(format!(
                "condition {wrong:?} never matches {family} packets",
                wrong = wrong.to_string()
            )));
        }
    }
    Ok(())
}

/// The table for mappings with these conditions.
pub(super) fn table(options: &Options) -> Table {
    if options.conditions_v4.is_empty() && options.conditions_v6.is_empty() {
        return Table::named(Family::Inet, PREFIX);
    }
    let text = |conditions: &[Condition]| conditions.iter().map(|c| format!("{c}\n")).collect::<String>();
    let all = format!("{}\n{}", text(&options.conditions_v4), text(&options.conditions_v6));
    Table::new(Family::Inet, format!("{PREFIX}_{}", hash(&all, 12)))
}

/// Whether a table contains port mappings.
pub(in super::super) fn is_table(table: &Table) -> bool {
    let rest = table.name.strip_prefix(PREFIX);
    table.family == Family::Inet && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(net: &str, negated: bool) -> Condition {
        Condition { part: Part::Source(net.parse().unwrap()), negated }
    }

    #[test]
    fn each_set_of_conditions_has_its_own_table() {
        let plain = Options::default();
        let one = Options { conditions_v4: vec![from("10.0.0.0/8", false)], ..Options::default() };
        let other = Options { conditions_v4: vec![from("10.0.0.0/8", true)], ..Options::default() };
        assert_eq!(table(&plain).name, "podwire_ports");
        assert_ne!(table(&one), table(&other));
        assert!([plain, one, other].iter().all(|options| is_table(&table(options))));
        assert!(!is_table(&Table::named(Family::Ip, "podwire_ports")));
    }

    #[test]
    fn a_prefix_of_the_wrong_family_is_an_error() {
        let wrong = Options { conditions_v6: vec![from("10.0.0.0/8", false)], ..Options::default() };
        let text = check(&wrong).unwrap_err().to_string();
        assert_eq!(text, "condition \"saddr 10.0.0.0/8\" never matches ip6 packets");
    }
}

//! Conditions on packets to host ports, and the table that they need.
//!
//! A condition holds for a whole network, so it stands in a rule, and port maps with other conditions live in
//! another table: no network can change what another one asked for.

use std::fmt;

use ipnet::IpNet;
use podwire_netlink::nft::{Family, Field, Rule, Table};

use super::Options;
use crate::owner::hash;
use crate::{Error, Result};

const PREFIX: &str = "podwire_ports";

/// What a packet must be like for a port map to apply.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Condition {
    /// What is looked at.
    pub part: Part,
    /// Whether it must *not* be so.
    pub negated: bool,
}

/// A part of a packet that a condition is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// It comes from this prefix.
    Source(IpNet),
    /// It goes to this prefix.
    Destination(IpNet),
    /// It came in by this device.
    Interface(String),
}

impl Condition {
    /// Adds the condition to a rule for packets of this family.
    pub(super) fn narrow(&self, rule: Rule) -> Rule {
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
            Part::Source(net) | Part::Destination(net) => super::super::family(net) == family,
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

/// Fails for an IPv6 prefix among the conditions for IPv4, and the other way round.
pub(super) fn check(options: &Options) -> Result<()> {
    for (family, conditions) in [(Family::Ip, &options.conditions_v4), (Family::Ip6, &options.conditions_v6)]
    {
        if let Some(wrong) = conditions.iter().find(|condition| !condition.fits(family)) {
            return Err(Error::Other(format!(
                "condition {wrong:?} can never be true of {family} packets",
                wrong = wrong.to_string()
            )));
        }
    }
    Ok(())
}

/// The table for port maps under these conditions.
pub(super) fn table(options: &Options) -> Table {
    if options.conditions_v4.is_empty() && options.conditions_v6.is_empty() {
        return Table::named(Family::Inet, PREFIX);
    }
    let text = |conditions: &[Condition]| conditions.iter().map(|c| format!("{c}\n")).collect::<String>();
    let all = format!("{}\n{}", text(&options.conditions_v4), text(&options.conditions_v6));
    Table::new(Family::Inet, format!("{PREFIX}_{}", hash(&all, 12)))
}

/// Whether a table is one of those.
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
    fn other_conditions_other_table() {
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
        assert_eq!(text, "condition \"saddr 10.0.0.0/8\" can never be true of ip6 packets");
    }
}

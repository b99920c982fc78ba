//! The chains that depend on numbers: how many endpoints a frontend has, and how long a client keeps its endpoint.

use std::time::Duration;

use podwire_ip::IpFamily;
use podwire_netlink::nft::{Field, IpTerms, Rule, Transaction};

use super::family::NftFamily;
use super::sets::{SetId, TABLE};
use crate::Clients;

/// The index of the first endpoint for clients of other nodes, with the external traffic policy `Local`.
pub(super) const FIRST_FOR_OTHERS: u32 = 1 << 16;

/// A chain whose rules depend on a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum CountedChain {
    /// Chooses one of this number of endpoints.
    Random(IpFamily, Clients, u32),
    /// Takes the endpoint that the client had before; otherwise continues in `Random`.
    Sticky(IpFamily, Clients, u32),
    /// Remembers the endpoint of the client.
    Affinity(IpFamily, Duration),
}

impl CountedChain {
    pub fn name(self) -> String {
        let word = |clients, all, others| match clients {
            Clients::All => all,
            Clients::Others => others,
        };
        match self {
            CountedChain::Random(family, clients, count) => {
                format!("ip{}_{}_{count}", family.digit(), word(clients, "random", "local"))
            }
            CountedChain::Sticky(family, clients, count) => {
                format!("ip{}_{}_{count}", family.digit(), word(clients, "sticky", "sticky_local"))
            }
            CountedChain::Affinity(family, timeout) => {
                format!("ip{}_affinity_{}", family.digit(), timeout.as_secs())
            }
        }
    }

    /// The timeout of the [`Affinity`](CountedChain::Affinity) chain with this name.
    pub fn affinity_timeout(family: IpFamily, name: &str) -> Option<Duration> {
        let seconds = name.rsplit('_').next()?.parse().ok()?;
        let timeout = Duration::from_secs(seconds);
        (CountedChain::Affinity(family, timeout).name() == name).then_some(timeout)
    }

    /// The chain that this chain continues in.
    pub fn next(self) -> Option<CountedChain> {
        match self {
            CountedChain::Sticky(family, clients, count) => {
                Some(CountedChain::Random(family, clients, count))
            }
            CountedChain::Random(..) | CountedChain::Affinity(..) => None,
        }
    }

    /// Creates the chain with its rules, or writes its rules again. The next chain must be there.
    pub fn add(self, change: &mut Transaction) {
        let name = self.name();
        change.add_chain(&TABLE, &name);
        change.flush_chain(&TABLE, &name);
        self.rules().iter().for_each(|rule| change.add_rule(&TABLE, &name, rule));
    }

    fn rules(self) -> Vec<Rule> {
        match self {
            CountedChain::Random(family, clients, count) => {
                let first = match clients {
                    Clients::All => 0,
                    Clients::Others => FIRST_FOR_OTHERS,
                };
                let endpoints = SetId::Endpoints.name(family);
                let choose = |count: u32| {
                    let numbers = first..first + count;
                    family.rule().dnat_random(family.packet_family(), &family.frontend(), numbers, &endpoints)
                };
                // Maps change while a packet passes, rules do not. If the chosen endpoint was deleted since the packet's
                // chain was looked up, it gets the first one.
                vec![choose(count), choose(1)]
            }
            CountedChain::Sticky(family, ..) => {
                let [address, protocol, port] = family.frontend();
                let key = [family.source(), address, protocol, port];
                let known =
                    family.rule().dnat_map(family.packet_family(), &key, &SetId::Affinity.name(family));
                let next = self.next().map(|next| Rule::new().goto(next.name()));
                std::iter::once(known).chain(next).collect()
            }
            CountedChain::Affinity(family, timeout) => {
                let [address, protocol, port] = family.original_frontend();
                let key = [family.source(), address, protocol, port];
                let endpoint = [family.destination(), Field::PortDestination];
                let map = SetId::Affinity.name(family);
                vec![family.rule().update_map(&key, &endpoint, &map, timeout)]
            }
        }
    }
}

//! A small interpreter of programs: the reference for what a data plane does, and the oracle's counterpart in tests.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::program::{Chain, Endpoint, Outcome, Peer, Port, Rule};
use crate::{Direction, Packet, Program, Verdict};

impl Program {
    /// What becomes of the first packet of a connection.
    pub fn judge(&self, packet: &Packet) -> Verdict {
        self.judge_on(packet, &BTreeSet::new())
    }

    /// The same on a node that has these addresses, of which those who describe nodes need not know: its bridge's, its tunnel's.
    /// All pods of the program are its own.
    pub fn judge_on(&self, packet: &Packet, own: &BTreeSet<IpAddr>) -> Verdict {
        let (source, destination) = (self.endpoint_at(packet.source), self.endpoint_at(packet.destination));
        if let (Some(source), Some(destination)) = (source, destination) {
            if std::ptr::eq(source, destination) {
                return Verdict::Allow;
            }
        }
        let one = |endpoint: Option<&Endpoint>, direction| match endpoint {
            Some(endpoint) => self.judge_one((endpoint, own), direction, packet),
            None => Verdict::Allow,
        };
        one(source, Direction::Egress).and(one(destination, Direction::Ingress))
    }

    fn endpoint_at(&self, address: IpAddr) -> Option<&Endpoint> {
        self.endpoints.values().find(|endpoint| endpoint.addresses.contains(&address))
    }

    fn judge_one(
        &self,
        (endpoint, own): (&Endpoint, &BTreeSet<IpAddr>),
        direction: Direction,
        packet: &Packet,
    ) -> Verdict {
        let peer = match direction {
            Direction::Ingress => packet.source,
            Direction::Egress => packet.destination,
        };
        let is_node = endpoint.node.contains(&peer) || own.contains(&peer);
        if direction == Direction::Ingress && is_node {
            return Verdict::Allow;
        }
        match endpoint.chain(direction).and_then(|id| self.chains.get(id)) {
            None => Verdict::Allow,
            Some(chain) => self.walk(chain, (peer, is_node), packet),
        }
    }

    fn walk(&self, chain: &Chain, peer: (IpAddr, bool), packet: &Packet) -> Verdict {
        for stage in chain.stages.iter().filter_map(|id| self.stages.get(id)) {
            let matching =
                |rule: &&Rule| self.peer_matches(&rule.peer, peer) && self.port_matches(&rule.port, packet);
            match stage.rules.iter().find(matching).map_or(stage.otherwise, |rule| rule.outcome) {
                Outcome::Accept => return Verdict::Allow,
                Outcome::Drop => return Verdict::Deny,
                Outcome::Next => {}
            }
        }
        Verdict::Allow
    }

    fn peer_matches(&self, wanted: &Peer, (peer, is_node): (IpAddr, bool)) -> bool {
        match wanted {
            Peer::Anyone => true,
            Peer::Addresses(id) => self.addresses.get(id).is_some_and(|set| set.contains(&peer)),
            Peer::Networks(id) => {
                self.networks.get(id).is_some_and(|set| set.iter().any(|net| net.contains(&peer)))
            }
            Peer::OwnNode => is_node,
        }
    }

    fn port_matches(&self, wanted: &Port, packet: &Packet) -> bool {
        let Some((protocol, port)) = packet.service else { return *wanted == Port::Any };
        match wanted {
            Port::Any => true,
            Port::Numbers(id) => self.ports.get(id).is_some_and(|set| {
                set.iter()
                    .any(|range| range.protocol == protocol && (range.first..=range.last).contains(&port))
            }),
            Port::Named(id) => self
                .named_ports
                .get(id)
                .is_some_and(|set| set.contains(&(packet.destination, protocol, port))),
        }
    }
}

//! A small interpreter of programs: the reference for what a data plane does, and the oracle's counterpart in tests.

use std::net::IpAddr;

use crate::program::{Chain, Endpoint, Outcome, Peer, Port, Rule};
use crate::{Direction, Packet, Program, Verdict};

impl Program {
    /// What becomes of the first packet of a connection.
    pub fn judge(&self, packet: &Packet) -> Verdict {
        let (source, destination) = (self.endpoint_at(packet.source), self.endpoint_at(packet.destination));
        if let (Some(source), Some(destination)) = (source, destination) {
            if std::ptr::eq(source, destination) {
                return Verdict::Allow;
            }
        }
        let one = |endpoint: Option<&Endpoint>, direction| match endpoint {
            Some(endpoint) => self.judge_one(endpoint, direction, packet),
            None => Verdict::Allow,
        };
        one(source, Direction::Egress).and(one(destination, Direction::Ingress))
    }

    fn endpoint_at(&self, address: IpAddr) -> Option<&Endpoint> {
        self.endpoints.values().find(|endpoint| endpoint.addresses.contains(&address))
    }

    fn judge_one(&self, endpoint: &Endpoint, direction: Direction, packet: &Packet) -> Verdict {
        let peer = match direction {
            Direction::Ingress => packet.source,
            Direction::Egress => packet.destination,
        };
        if direction == Direction::Ingress && endpoint.node.contains(&peer) {
            return Verdict::Allow;
        }
        match endpoint.chain(direction).and_then(|id| self.chains.get(id)) {
            None => Verdict::Allow,
            Some(chain) => self.walk(chain, endpoint, peer, packet),
        }
    }

    fn walk(&self, chain: &Chain, endpoint: &Endpoint, peer: IpAddr, packet: &Packet) -> Verdict {
        for stage in chain.stages.iter().filter_map(|id| self.stages.get(id)) {
            let matching = |rule: &&Rule| {
                self.peer_matches(&rule.peer, endpoint, peer) && self.port_matches(&rule.port, packet)
            };
            match stage.rules.iter().find(matching).map_or(stage.otherwise, |rule| rule.outcome) {
                Outcome::Accept => return Verdict::Allow,
                Outcome::Drop => return Verdict::Deny,
                Outcome::Next => {}
            }
        }
        Verdict::Allow
    }

    fn peer_matches(&self, wanted: &Peer, endpoint: &Endpoint, peer: IpAddr) -> bool {
        match wanted {
            Peer::Anyone => true,
            Peer::Addresses(id) => self.addresses.get(id).is_some_and(|set| set.contains(&peer)),
            Peer::Networks(id) => {
                self.networks.get(id).is_some_and(|set| set.iter().any(|net| net.contains(&peer)))
            }
            Peer::OwnNode => endpoint.node.contains(&peer),
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

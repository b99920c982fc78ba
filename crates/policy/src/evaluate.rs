//! Evaluates a program for one packet: the reference for the nftables rules, and what tests compare with the oracle.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::program::{Chain, Endpoint, Outcome, Peer, Port, Rule};
use crate::{Direction, Packet, Program, Verdict};

/// The other end of a packet, seen from a pod.
#[derive(Clone, Copy)]
struct PeerEnd {
    address: IpAddr,
    /// Whether it is the pod's node.
    is_node: bool,
}

impl Program {
    /// The verdict for the first packet of a connection.
    pub fn evaluate(&self, packet: &Packet) -> Verdict {
        self.evaluate_on_node(packet, &BTreeSet::new())
    }

    /// The same on the node that runs all pods of the program. `node` has all of its addresses, also those that the
    /// Node object lacks, such as those of its bridge and tunnel.
    pub fn evaluate_on_node(&self, packet: &Packet, node: &BTreeSet<IpAddr>) -> Verdict {
        let (source, destination) = (self.endpoint_at(packet.source), self.endpoint_at(packet.destination));
        if let (Some(source), Some(destination)) = (source, destination) {
            if std::ptr::eq(source, destination) {
                return Verdict::Allow;
            }
        }
        let check = |endpoint: Option<&Endpoint>, direction| match endpoint {
            Some(endpoint) => self.evaluate_for(endpoint, direction, packet, node),
            None => Verdict::Allow,
        };
        check(source, Direction::Egress).and(check(destination, Direction::Ingress))
    }

    fn endpoint_at(&self, address: IpAddr) -> Option<&Endpoint> {
        self.endpoints.values().find(|endpoint| endpoint.addresses.contains(&address))
    }

    fn evaluate_for(
        &self,
        endpoint: &Endpoint,
        direction: Direction,
        packet: &Packet,
        node: &BTreeSet<IpAddr>,
    ) -> Verdict {
        let address = match direction {
            Direction::Ingress => packet.source,
            Direction::Egress => packet.destination,
        };
        let peer = PeerEnd { address, is_node: endpoint.node.contains(&address) || node.contains(&address) };
        if direction == Direction::Ingress && peer.is_node {
            return Verdict::Allow;
        }
        match endpoint.chain(direction).and_then(|id| self.chains.get(id)) {
            None => Verdict::Allow,
            Some(chain) => self.evaluate_chain(chain, peer, packet),
        }
    }

    fn evaluate_chain(&self, chain: &Chain, peer: PeerEnd, packet: &Packet) -> Verdict {
        for stage in chain.stages.iter().filter_map(|id| self.stages.get(id)) {
            let matching =
                |rule: &&Rule| self.peer_matches(&rule.peer, peer) && self.port_matches(&rule.port, packet);
            match stage.rules.iter().find(matching).map_or(stage.default_outcome, |rule| rule.outcome) {
                Outcome::Accept => return Verdict::Allow,
                Outcome::Drop => return Verdict::Deny,
                Outcome::Next => {}
            }
        }
        Verdict::Allow
    }

    fn peer_matches(&self, wanted: &Peer, peer: PeerEnd) -> bool {
        match wanted {
            Peer::Anyone => true,
            Peer::Addresses(id) => self.addresses.get(id).is_some_and(|set| set.contains(&peer.address)),
            Peer::Networks(id) => {
                self.networks.get(id).is_some_and(|set| set.iter().any(|net| net.contains(&peer.address)))
            }
            Peer::OwnNode => peer.is_node,
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

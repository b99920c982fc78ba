//! Every probe on every attachment, for both directions and both families: what policies deny never arrives, and what
//! they allow arrives.

use std::net::IpAddr;

use podwire_policy_agent::dataplane::Nftables;

use crate::attachment::{apply, Attachment, Pods};
use crate::frames::{arriving, wrong, Sender};
use crate::packets::ip;
use crate::probes::{attacks, useful, Ends, Row};
use crate::testbed::{on_node, run, Endpoint};

/// Positions in [`Pods`].
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
const E: usize = 3;

#[test]
fn nothing_bypasses_the_policies_of_bridged_pods() {
    on_node(|nft| check(nft, Attachment::Bridge));
}

#[test]
fn nothing_bypasses_the_policies_of_routed_pods() {
    on_node(|nft| check(nft, Attachment::Ptp));
}

#[test]
fn nothing_bypasses_the_policies_of_calico_pods() {
    on_node(|nft| check(nft, Attachment::Calico));
}

fn check(nft: &mut Nftables, attachment: Attachment) {
    let mut pods = Pods::of(attachment);
    let outside = Endpoint::external();
    publish(&pods.pods[B], "iif != uplink ip daddr 192.0.2.1", "iif != uplink ip6 daddr fd00:9::1");
    let mut failed = Vec::new();
    // Without its index a device is found by its name.
    for has_index in [true, false] {
        pods.ports.iter_mut().for_each(|port| port.index = port.index.filter(|_| has_index));
        apply(nft, &pods.objects, &pods.ports);
        for v6 in [false, true] {
            let table = Table { pods: &pods, outside: &outside, v6 };
            failed.extend(table.ingress());
            failed.extend(table.egress());
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Makes UDP port 8080 of the node lead to port 9 of the endpoint.
fn publish(to: &Endpoint, four: &str, six: &str) {
    run(
        "nft add table inet ports; nft add chain inet ports p { type nat hook prerouting priority -100 \\; }",
    );
    let Endpoint { ip4, ip6, .. } = to;
    run(&format!("nft add rule inet ports p {four} udp dport 8080 dnat ip to {ip4}:9"));
    run(&format!("nft add rule inet ports p {six} udp dport 8080 dnat ip6 to [{ip6}]:9"));
}

struct Table<'a> {
    pods: &'a Pods,
    outside: &'a Endpoint,
    v6: bool,
}

impl Table<'_> {
    fn ip(&self, endpoint: &Endpoint) -> IpAddr {
        ip(if self.v6 { &endpoint.ip6 } else { &endpoint.ip4 })
    }

    fn title(&self, direction: &str) -> String {
        format!("{:?}, {direction}, IPv{}", self.pods.attachment, if self.v6 { 6 } else { 4 })
    }

    fn ends(&self, from: &Endpoint, to: &Endpoint, other: &Endpoint) -> Ends {
        let (node, host_port) = if self.v6 { ("fd00:1::1", "fd00:9::1") } else { ("10.1.0.1", "192.0.2.1") };
        let (from, to, other) = (self.ip(from), self.ip(to), self.ip(other));
        Ends { from, to, other, node: ip(node), host_port: ip(host_port), port: 9 }
    }

    /// `a` may not reach `b`, and `c` may.
    fn ingress(&self) -> Vec<String> {
        let Pods { pods: [a, b, c, _], ports, .. } = self.pods;
        let denied = attacks(self.ends(a, b, c));
        let (mut from_a, mut from_c) = (Sender::new(a, &ports[A]), Sender::new(c, &ports[C]));
        for (_, packets) in &denied {
            for packet in packets {
                from_a.add_packet(self.pods.next_hop(A, B), packet);
                // By way of the node, which a pod on the bridge also may use.
                from_a.add_packet(self.pods.gateway(A), packet);
                // The kernel takes a frame with VLAN id 0 as untagged.
                let ether_type = if self.v6 { [0x86, 0xdd] } else { [0x08, 0x00] };
                let tagged = [&[0, 0][..], &ether_type, packet].concat();
                from_a.add(self.pods.gateway(A), &[], 0x8100, &tagged);
            }
        }
        let ends = self.ends(c, b, a);
        let arrived = arriving(b, || {
            from_a.send();
            self.send_useful(&mut from_c, self.pods.next_hop(C, B), ends);
        });
        wrong(&self.title("ingress"), &arrived, &names(useful(ends)))
    }

    /// `e` may send to UDP port 7 only.
    fn egress(&self) -> Vec<String> {
        let Pods { pods: [_, _, c, e], ports, .. } = self.pods;
        let mut from_e = Sender::new(e, &ports[E]);
        let to_outside = Ends { port: 9, ..self.ends(e, self.outside, c) };
        for (_, packets) in attacks(to_outside) {
            packets.iter().for_each(|packet| from_e.add_packet(self.pods.gateway(E), packet));
        }
        let ends = Ends { port: 7, ..to_outside };
        let arrived = arriving(self.outside, || {
            from_e.send();
            self.send_useful(&mut from_e, self.pods.gateway(E), ends);
        });
        wrong(&self.title("egress"), &arrived, &names(useful(ends)))
    }

    fn send_useful(&self, sender: &mut Sender<'_>, next_hop: [u8; 6], ends: Ends) {
        let packets = useful(ends).into_iter().flat_map(|(_, packets)| packets);
        packets.for_each(|packet| sender.add_packet(next_hop, &packet));
        let end = crate::packets::udp(ends.from, ends.to, (9, ends.port), "end");
        sender.add_packet(next_hop, &end);
        sender.send();
    }
}

fn names(rows: Vec<Row>) -> Vec<String> {
    rows.into_iter().map(|(name, _)| name).collect()
}

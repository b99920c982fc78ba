use podwire_kernel::tunnel::Driver;
use podwire_netlink::rt::route::Route;
use proptest::prelude::*;

use super::*;
use crate::wireguard::Mode;
use crate::{
    Alloc, Backend, Cluster, HostGw, Ipip, LocalNode, LocalSubnet, PeerSubnet, RouteLookup, Uplink, VtepMac,
    Vxlan, Wireguard, WireguardEndpoint,
};

const UPLINK: u32 = 2;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The routes of a node on 192.168.1.0/24 and fd01::/64, with a default route.
fn lookup() -> RouteLookup {
    let on_link = |to: &str| Route { link: Some(UPLINK), ..Route::to(net(to).addr(), net(to).prefix_len()) };
    let behind_router = |to: &str, via: &str| Route { gateway: Some(ip(via)), ..on_link(to) };
    let routes = [
        on_link("192.168.1.0/24"),
        behind_router("0.0.0.0/0", "192.168.1.1"),
        on_link("fd01::/64"),
        behind_router("::/0", "fd01::1"),
    ];
    RouteLookup::new(&routes, &networks())
}

fn networks() -> Vec<IpNet> {
    vec![net("10.244.0.0/16"), net("fd00:244::/48")]
}

fn local() -> LocalNode {
    let side = |pods: &str, address: &str| LocalSubnet {
        pod_cidr: net(pods),
        uplink: Uplink { index: UPLINK, name: "eth0".into(), mtu: 1500, address: ip(address) },
    };
    LocalNode {
        name: "n1".into(),
        subnets: vec![side("10.244.1.0/24", "192.168.1.1"), side("fd00:244:0:1::/64", "fd01::11")],
    }
}

fn peer(number: u8, v4: &str, v6: &str) -> crate::Peer {
    let side = |pods: String, address: &str, v6: u8| PeerSubnet {
        pod_cidr: net(&pods),
        address: ip(address),
        vtep_mac: Some(Mac([2, 0, 0, 0, v6, number])),
        wireguard: Some(WireguardEndpoint {
            public_key: Key([number + 100 * v6; 32]),
            port: 51820 + u16::from(v6),
        }),
    };
    let sides =
        vec![side(format!("10.244.{number}.0/24"), v4, 0), side(format!("fd00:244:0:{number}::/64"), v6, 1)];
    crate::Peer { name: format!("n{number}"), subnets: sides }
}

/// n2 is on the same link, n3 is behind the router.
fn cluster() -> Cluster {
    let peers = vec![peer(3, "192.168.9.3", "fd09::3"), peer(2, "192.168.1.2", "fd01::2")];
    Cluster { networks: networks(), local: local(), peers }
}

fn routes(desired: &DesiredState) -> Vec<String> {
    let one = |route: &DesiredRoute| {
        let via = route.via.map(|via| format!(" via {via}")).unwrap_or_default();
        let egress = match route.egress {
            Egress::Tunnel(number) => desired.devices[number].tunnel.name.clone(),
            Egress::Link(index) => format!("link {index}"),
        };
        format!("{}{via} over {egress}{}", route.to, if route.onlink { " onlink" } else { "" })
    };
    desired.routes.iter().map(one).collect()
}

#[test]
fn vxlan_needs_one_route_neighbour_and_forwarding_entry_for_each_peer() {
    let desired = Vxlan::default().desired(&cluster(), &lookup());
    assert_eq!(
        routes(&desired),
        [
            "10.244.2.0/24 via 10.244.2.0 over flannel.1 onlink",
            "10.244.3.0/24 via 10.244.3.0 over flannel.1 onlink",
            "fd00:244:0:2::/64 via fd00:244:0:2:: over flannel-v6.1 onlink",
            "fd00:244:0:3::/64 via fd00:244:0:3:: over flannel-v6.1 onlink",
        ]
    );
    let device = &desired.devices[0];
    let macs = [Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, 3])];
    assert_eq!(device.addresses, [ip("10.244.1.0")]);
    assert_eq!(device.neighbours, [(ip("10.244.2.0"), macs[0]), (ip("10.244.3.0"), macs[1])]);
    assert_eq!(device.forwarding, [(macs[0], ip("192.168.1.2")), (macs[1], ip("192.168.9.3"))]);
    assert!(desired.unreachable.is_empty());
}

#[test]
fn the_mtu_depends_on_the_family_of_the_outer_packet() {
    let mtus = |vxlan: &Vxlan| -> Vec<u32> {
        vxlan.desired(&cluster(), &lookup()).devices.iter().map(|device| device.tunnel.mtu).collect()
    };
    assert_eq!(mtus(&Vxlan::default()), [1430, 1430]);
    assert_eq!(mtus(&Vxlan { mtu: Some(9000), ..Vxlan::default() }), [8930, 8930]);
    assert_eq!(Vxlan::default().mtu(&local()), 1430, "pods of both families share an interface");
    let only4 = LocalNode { subnets: vec![local().subnets[0].clone()], ..local() };
    assert_eq!((Vxlan::default().mtu(&only4), HostGw.mtu(&only4), Alloc.mtu(&only4)), (1450, 1500, 1500));
    assert_eq!((Ipip::default().mtu(&only4), Wireguard::new(Key([1; 32])).mtu(&only4)), (1480, 1420));
}

#[test]
fn port_zero_is_the_kernels_and_the_local_address_is_the_uplinks() {
    let vxlan = Vxlan { vni: 7, ..Vxlan::default() };
    let Driver::Vxlan(settings) = vxlan.desired(&cluster(), &lookup()).devices[0].tunnel.driver else {
        panic!("not a VXLAN device");
    };
    assert_eq!((settings.vni, settings.port, settings.local), (7, 8472, ip("192.168.1.1")));
    assert_eq!((settings.link, settings.learning, settings.gbp), (UPLINK, false, false));
}

#[test]
fn direct_or_not_is_decided_for_each_peer() {
    let direct = Vxlan { direct: true, ..Vxlan::default() }.desired(&cluster(), &lookup());
    assert_eq!(
        routes(&direct),
        [
            "10.244.2.0/24 via 192.168.1.2 over link 2",
            "10.244.3.0/24 via 10.244.3.0 over flannel.1 onlink",
            "fd00:244:0:2::/64 via fd01::2 over link 2",
            "fd00:244:0:3::/64 via fd00:244:0:3:: over flannel-v6.1 onlink",
        ]
    );
    assert_eq!((direct.devices[0].neighbours.len(), direct.devices[0].forwarding.len()), (1, 1));
    let host_gw = HostGw.desired(&cluster(), &lookup());
    assert_eq!((host_gw.routes.len(), host_gw.devices.len(), host_gw.unreachable.len()), (2, 0, 2));
    let ipip = Ipip { direct: true, ..Ipip::default() }.desired(&cluster(), &lookup());
    assert_eq!(
        routes(&ipip),
        [
            "10.244.2.0/24 via 192.168.1.2 over link 2",
            "10.244.3.0/24 via 192.168.9.3 over flannel.ipip onlink"
        ]
    );
    assert_eq!(Alloc.desired(&cluster(), &lookup()), DesiredState::default());
}

#[test]
fn hardware_addresses_are_kept_registered_or_derived() {
    let macs = |mac: VtepMac, name: &str| -> Vec<Option<Mac>> {
        let cluster = Cluster { local: LocalNode { name: name.into(), ..local() }, ..cluster() };
        let desired = Vxlan { mac, ..Vxlan::default() }.desired(&cluster, &lookup());
        desired.devices.iter().map(|device| device.tunnel.mac).collect()
    };
    assert_eq!(macs(VtepMac::Keep, "n1"), [None, None]);
    let registered = Mac([2, 0, 0, 0, 0, 9]);
    assert_eq!(macs(VtepMac::Registered { v4: Some(registered), v6: None }, "n1"), [Some(registered), None]);
    let derived = macs(VtepMac::Derived, "n1");
    assert_eq!(derived, macs(VtepMac::Derived, "n1"));
    assert!(derived[0] != derived[1] && derived[0] != macs(VtepMac::Derived, "n2")[0]);
}

#[test]
fn wireguard_has_one_route_for_each_network_and_the_pod_cidrs_of_each_peer() {
    let desired = Wireguard::new(Key([1; 32])).desired(&cluster(), &lookup());
    assert_eq!(routes(&desired), ["10.244.0.0/16 over flannel-wg", "fd00:244::/48 over flannel-wg-v6"]);
    let peers = |number: usize| &desired.devices[number].wireguard.as_ref().unwrap().peers;
    assert_eq!(peers(0)[0].endpoint, "192.168.1.2:51820".parse().ok());
    assert_eq!(peers(0)[0].allowed, [(ip("10.244.2.0"), 24)]);
    assert_eq!(peers(1)[1].endpoint, "[fd09::3]:51821".parse().ok());

    for (mode, endpoint) in [
        (Mode::Auto, "192.168.1.2:51820"),
        (Mode::Ipv4, "192.168.1.2:51820"),
        (Mode::Ipv6, "[fd01::2]:51821"),
    ] {
        let one = Wireguard { mode, ..Wireguard::new(Key([1; 32])) }.desired(&cluster(), &lookup());
        assert_eq!(one.devices.len(), 1);
        let peers = &one.devices[0].wireguard.as_ref().unwrap().peers;
        assert_eq!(peers[0].endpoint, endpoint.parse().ok());
        assert_eq!(peers[0].allowed, [(ip("10.244.2.0"), 24), (ip("fd00:244:0:2::"), 64)]);
    }
    let mut unpublished = cluster();
    unpublished.peers[0].subnets.iter_mut().for_each(|side| side.wireguard = None);
    let desired = Wireguard::new(Key([1; 32])).desired(&unpublished, &lookup());
    assert_eq!(desired.unreachable.len(), 2, "{:?}", desired.unreachable);
}

proptest! {
    #[test]
    fn the_result_is_independent_of_the_peer_order_and_routes_never_overlap(
        ranges in proptest::collection::vec((0u8..8, 0u8..4, 20u8..27, 0u8..12), 0..24),
        turn in 0usize..24,
    ) {
        let peer = |(number, (third, host, length, address)): (usize, &(u8, u8, u8, u8))| {
            let pods = IpNet::new(IpAddr::from([10, 244, *third, host * 64]), *length).unwrap();
            let vtep_mac = Some(Mac([2, 0, 0, 0, 0, *address]));
            let side = PeerSubnet { vtep_mac, ..PeerSubnet::new(pods, IpAddr::from([192, 168, 1, 100 + *address])) };
            crate::Peer { name: format!("n{number}"), subnets: vec![side] }
        };
        let mut peers: Vec<crate::Peer> = ranges.iter().enumerate().map(peer).collect();
        let all = Cluster { peers: peers.clone(), ..cluster() };
        let desired = Vxlan::default().desired(&all, &lookup());
        let turned = turn % peers.len().max(1);
        peers.rotate_left(turned);
        let mut again = Vxlan::default().desired(&Cluster { peers, ..cluster() }, &lookup());
        again.unreachable.sort_by(|one, other| one.peer.cmp(&other.peer));
        let mut first = desired.clone();
        first.unreachable.sort_by(|one, other| one.peer.cmp(&other.peer));
        prop_assert_eq!(&first, &again);
        prop_assert_eq!(desired.routes.len() + desired.unreachable.len(), ranges.len());
        let own = cluster().local.subnets[0].pod_cidr;
        for (n, one) in desired.routes.iter().enumerate() {
            for other in desired.routes[..n].iter().map(|route| &route.to).chain([&own]) {
                prop_assert!(!one.to.contains(other) && !other.contains(&one.to), "{} and {other}", one.to);
            }
        }
    }
}

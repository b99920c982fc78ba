use super::*;

const DEVICE: u32 = 7;
const UPLINK: u32 = 2;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// `10.244.2.0/24 via 10.244.2.0`, by protocol and link.
fn route(to: &str, via: &str, protocol: u8, link: u32) -> Route {
    let to = net(to);
    let onlink = link == DEVICE;
    let gateway = (!via.is_empty()).then(|| via.parse().unwrap());
    Route { gateway, protocol, link: Some(link), onlink, ..Route::to(to.addr(), to.prefix_len()) }
}

fn ours(to: &str) -> Route {
    route(to, &net(to).network().to_string(), PROTOCOL, DEVICE)
}

fn compare(wanted: &[Route], found: &[Route]) -> (Vec<String>, Vec<String>, usize) {
    let networks = [net("10.244.0.0/16"), net("fd00:244::/48")];
    let found =
        difference(wanted, found, &Claim { devices: &[DEVICE], networks: &networks, predecessor: None });
    let words = |messages: &[Message]| messages.iter().map(|one| one.doing().to_string()).collect();
    (words(&found.obsolete), words(&found.needed), found.occupied.len())
}

#[test]
fn nothing_is_done_about_what_is_there() {
    let both = [ours("10.244.2.0/24"), ours("fd00:244:2::/64")];
    let mut as_told = both.clone();
    as_told[1].priority = Some(1024);
    assert_eq!(compare(&both, &as_told), (vec![], vec![], 0));
}

#[test]
fn what_is_missing_comes_and_what_nobody_wants_goes() {
    let (gone, come, occupied) = compare(&[ours("10.244.2.0/24")], &[ours("10.244.3.0/24")]);
    assert_eq!(gone, ["delete route to 10.244.3.0/24 via 10.244.3.0"]);
    assert_eq!(come, ["add route to 10.244.2.0/24 via 10.244.2.0"]);
    assert_eq!(occupied, 0);
}

#[test]
fn a_peer_that_changed_its_road_gets_it_in_one_message_or_in_ipv6_in_two() {
    let direct = route("10.244.2.0/24", "192.168.1.2", PROTOCOL, UPLINK);
    assert_eq!(compare(&[direct], &[ours("10.244.2.0/24")]).1.len(), 1);
    let direct = route("fd00:244:2::/64", "fd01::2", PROTOCOL, UPLINK);
    let (gone, come, _) = compare(&[ours("fd00:244:2::/64")], &[direct]);
    assert_eq!((gone.len(), come.len()), (0, 2));
    assert!(come[0].starts_with("delete") && come[1].starts_with("add"), "{come:?}");
}

#[test]
fn flannels_routes_on_our_device_are_taken_over_and_those_of_dead_nodes_removed() {
    for protocol in [route::BY_TOOL, route::BY_ADMINISTRATOR] {
        let left = |to: &str| Route { protocol, ..ours(to) };
        let (gone, come, occupied) = compare(
            &[ours("10.244.2.0/24")],
            &[left("10.244.2.0/24"), left("10.244.9.0/24"), left("10.9.9.0/24")],
        );
        assert_eq!(come, ["add route to 10.244.2.0/24 via 10.244.2.0"]);
        assert_eq!(gone.len(), 2, "the last is of a network that the cluster had before: {gone:?}");
        assert_eq!(occupied, 0);
    }
}

#[test]
fn what_belongs_to_others_stays_even_if_it_is_in_the_way() {
    let others = [
        route("10.244.2.0/24", "192.168.1.9", route::BY_TOOL, UPLINK),
        route("10.244.3.0/24", "10.244.3.0", 12, DEVICE),
        route("172.16.0.0/16", "10.244.2.0", route::BY_TOOL, DEVICE),
        route("10.244.1.0/24", "", route::BY_KERNEL, 3),
    ];
    assert_eq!(compare(&[ours("10.244.2.0/24")], &others), (vec![], vec![], 1));
}

#[test]
fn somebody_elses_route_that_leads_the_same_way_is_as_good() {
    let theirs = route("10.244.2.0/24", "192.168.1.2", route::BY_ADMINISTRATOR, UPLINK);
    let wanted = route("10.244.2.0/24", "192.168.1.2", PROTOCOL, UPLINK);
    assert_eq!(compare(&[wanted], &[theirs]), (vec![], vec![], 0));
}

#[test]
fn flannels_route_on_the_wire_becomes_ours_so_that_it_goes_with_its_node() {
    let wanted = [route("10.244.2.0/24", "192.168.1.2", PROTOCOL, UPLINK)];
    let left = Route { protocol: route::BY_TOOL, ..wanted[0].clone() };
    let (gone, come, occupied) = compare(&wanted, std::slice::from_ref(&left));
    assert_eq!((gone.len(), come.len(), occupied), (0, 1, 0), "in one message");
    assert_eq!(compare(&[], &wanted).0.len(), 1, "the node has left");
    // Not if it leads elsewhere, or is not alone.
    let elsewhere = Route { gateway: "192.168.1.9".parse().ok(), ..left.clone() };
    assert_eq!(compare(&wanted, &[elsewhere]), (vec![], vec![], 1));
    let beside = Route { protocol: 12, ..left.clone() };
    assert_eq!(compare(&wanted, &[left, beside]), (vec![], vec![], 0));
}

#[test]
fn a_route_of_another_metric_is_another_route() {
    let theirs =
        Route { priority: Some(50), ..route("10.244.2.0/24", "192.168.1.9", route::BY_TOOL, UPLINK) };
    let mine = Route { priority: Some(50), ..ours("10.244.2.0/24") };
    let (gone, come, occupied) = compare(&[ours("10.244.2.0/24")], &[theirs, mine]);
    assert_eq!((gone.len(), come.len(), occupied), (1, 1, 0));
}

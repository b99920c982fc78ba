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

fn owned(to: &str) -> Route {
    route(to, &net(to).network().to_string(), PROTOCOL, DEVICE)
}

fn compare(desired: &[Route], found: &[Route]) -> (Vec<String>, Vec<String>, usize) {
    let networks = [net("10.244.0.0/16"), net("fd00:244::/48")];
    let found =
        difference(desired, found, &Ownership { devices: &[DEVICE], networks: &networks, predecessor: None });
    let texts = |messages: &[Message]| messages.iter().map(|one| one.doing().to_string()).collect();
    (texts(&found.obsolete), texts(&found.needed), found.occupied.len())
}

#[test]
fn routes_that_are_as_desired_need_no_message() {
    let both = [owned("10.244.2.0/24"), owned("fd00:244:2::/64")];
    let mut with_metric = both.clone();
    with_metric[1].priority = Some(1024);
    assert_eq!(compare(&both, &with_metric), (vec![], vec![], 0));
}

#[test]
fn missing_routes_are_added_and_obsolete_ones_deleted() {
    let (obsolete, needed, occupied) = compare(&[owned("10.244.2.0/24")], &[owned("10.244.3.0/24")]);
    assert_eq!(obsolete, ["delete route to 10.244.3.0/24 via 10.244.3.0"]);
    assert_eq!(needed, ["add route to 10.244.2.0/24 via 10.244.2.0"]);
    assert_eq!(occupied, 0);
}

#[test]
fn a_changed_path_is_one_message_in_ipv4_and_two_in_ipv6() {
    let direct = route("10.244.2.0/24", "192.168.1.2", PROTOCOL, UPLINK);
    assert_eq!(compare(&[direct], &[owned("10.244.2.0/24")]).1.len(), 1);
    let direct = route("fd00:244:2::/64", "fd01::2", PROTOCOL, UPLINK);
    let (obsolete, needed, _) = compare(&[owned("fd00:244:2::/64")], &[direct]);
    assert_eq!((obsolete.len(), needed.len()), (0, 2));
    assert!(needed[0].starts_with("delete") && needed[1].starts_with("add"), "{needed:?}");
}

#[test]
fn flannels_routes_on_an_owned_device_are_replaced_or_removed() {
    for protocol in [route::BY_TOOL, route::BY_ADMINISTRATOR] {
        let left = |to: &str| Route { protocol, ..owned(to) };
        let (obsolete, needed, occupied) = compare(
            &[owned("10.244.2.0/24")],
            &[left("10.244.2.0/24"), left("10.244.9.0/24"), left("10.9.9.0/24")],
        );
        assert_eq!(needed, ["add route to 10.244.2.0/24 via 10.244.2.0"]);
        assert_eq!(obsolete.len(), 2, "the last one is in an earlier network of the cluster: {obsolete:?}");
        assert_eq!(occupied, 0);
    }
}

#[test]
fn foreign_routes_stay_even_if_they_block_a_desired_one() {
    let others = [
        route("10.244.2.0/24", "192.168.1.9", route::BY_TOOL, UPLINK),
        route("10.244.3.0/24", "10.244.3.0", 12, DEVICE),
        route("172.16.0.0/16", "10.244.2.0", route::BY_TOOL, DEVICE),
        route("10.244.1.0/24", "", route::BY_KERNEL, 3),
    ];
    assert_eq!(compare(&[owned("10.244.2.0/24")], &others), (vec![], vec![], 1));
}

#[test]
fn a_foreign_route_with_the_same_path_is_enough() {
    let theirs = route("10.244.2.0/24", "192.168.1.2", route::BY_ADMINISTRATOR, UPLINK);
    let wanted = route("10.244.2.0/24", "192.168.1.2", PROTOCOL, UPLINK);
    assert_eq!(compare(&[wanted], &[theirs]), (vec![], vec![], 0));
}

#[test]
fn flannels_direct_route_becomes_owned() {
    let wanted = [route("10.244.2.0/24", "192.168.1.2", PROTOCOL, UPLINK)];
    let left = Route { protocol: route::BY_TOOL, ..wanted[0].clone() };
    let (obsolete, needed, occupied) = compare(&wanted, std::slice::from_ref(&left));
    assert_eq!((obsolete.len(), needed.len(), occupied), (0, 1, 0), "in one message");
    assert_eq!(compare(&[], &wanted).0.len(), 1, "the node has left");
    // Not if it has another path, or if there is a second route.
    let other_path = Route { gateway: "192.168.1.9".parse().ok(), ..left.clone() };
    assert_eq!(compare(&wanted, &[other_path]), (vec![], vec![], 1));
    let beside = Route { protocol: 12, ..left.clone() };
    assert_eq!(compare(&wanted, &[left, beside]), (vec![], vec![], 0));
}

#[test]
fn a_route_of_another_metric_is_another_route() {
    let theirs =
        Route { priority: Some(50), ..route("10.244.2.0/24", "192.168.1.9", route::BY_TOOL, UPLINK) };
    let mine = Route { priority: Some(50), ..owned("10.244.2.0/24") };
    let (obsolete, needed, occupied) = compare(&[owned("10.244.2.0/24")], &[theirs, mine]);
    assert_eq!((obsolete.len(), needed.len(), occupied), (1, 1, 0));
}

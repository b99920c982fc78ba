use super::*;

const LINK: u32 = 7;

fn ip(address: &str, gateway: Option<&str>) -> Ip {
    let gateway = gateway.map(|text| text.parse().unwrap());
    Ip { gateway, ..Ip::new(address.parse().unwrap()) }
}

fn route_to(dst: &str, gateway: Option<&str>, source: Option<&str>) -> Route {
    let net: IpNet = dst.parse().unwrap();
    Route {
        link: Some(LINK),
        gateway: gateway.map(|text| text.parse().unwrap()),
        source: source.map(|text| text.parse().unwrap()),
        ..Route::to(net.network(), net.prefix_len())
    }
}

fn rule_from(source: &str, table: u32) -> Rule {
    let source: IpNet = source.parse().unwrap();
    Rule { source: (source.addr(), source.prefix_len()), table, priority: Some(5) }
}

fn tables(tables: &[SourceTable]) -> Vec<(u32, bool)> {
    tables.iter().map(|table| (table.number, table.is_new)).collect()
}

fn open(sources: &[Ip], rules: &[Rule], table: Option<u32>, taken: &[u32]) -> Vec<SourceTable> {
    SourceRouting { table, ..SourceRouting::default() }.tables(sources, rules, taken).unwrap()
}

#[test]
fn each_address_gets_the_first_free_table_from_100_on() {
    let sources = [ip("10.1.0.5/24", None), ip("10.2.0.5/24", None), ip("fd00::5/64", None)];
    assert_eq!(tables(&open(&sources, &[], None, &[254, 101])), [(100, true), (102, true), (103, true)]);
    let taken: Vec<u32> = (100..=252).collect();
    assert_eq!(tables(&open(&sources[..1], &[], None, &taken)), [(256, true)]);
}

#[test]
fn a_table_with_a_rule_is_kept() {
    let sources = [ip("10.1.0.5/24", None), ip("10.2.0.5/24", None)];
    // A rule for a whole subnet, or to the main table, is not sbr's.
    let rules = [rule_from("10.2.0.5/32", 100), rule_from("10.1.0.5/24", 101), rule_from("10.1.0.5/32", 254)];
    assert_eq!(tables(&open(&sources, &rules, None, &[100, 101, 254])), [(102, true), (100, false)]);
}

#[test]
fn a_configured_table_serves_all_addresses() {
    let sources = [ip("10.1.0.5/24", None), ip("10.2.0.5/24", None)];
    let rules = [rule_from("10.1.0.5/32", 9), rule_from("10.2.0.5/32", 100)];
    assert_eq!(tables(&open(&sources, &rules, Some(9), &[])), [(9, false), (9, true)]);
    let zero = SourceRouting { table: Some(0), ..SourceRouting::default() }.tables(&sources, &[], &[]);
    assert_eq!(zero.unwrap_err().msg, "table: 0 is not a routing table");
}

#[test]
fn configured_gateways_override_and_are_one_of_each_family() {
    let parse = |list: &[&str]| Gateways::parse(&list.iter().map(ToString::to_string).collect::<Vec<_>>());
    let gateways = parse(&["10.1.0.254", "fd00::fe"]).unwrap();
    assert_eq!(gateways.of(&ip("10.1.0.5/24", Some("10.1.0.1"))), Some("10.1.0.254".parse().unwrap()));
    assert_eq!(gateways.of(&ip("fd00::5/64", None)), Some("fd00::fe".parse().unwrap()));
    assert_eq!(
        Gateways::default().of(&ip("10.1.0.5/24", Some("10.1.0.1"))),
        Some("10.1.0.1".parse().unwrap())
    );
    assert!(parse(&["10.1.0.1", "10.1.0.2"]).unwrap_err().msg.contains("same family"));
    assert_eq!(parse(&["gw"]).unwrap_err().msg, "invalid static gateway IP address: gw");
}

#[test]
fn routes_go_to_the_address_that_claims_them() {
    let tables = open(&[ip("10.1.0.5/24", Some("10.1.0.1")), ip("10.2.0.5/24", None)], &[], None, &[]);
    let on_link1 = route_to("10.1.0.0/24", None, Some("10.1.0.5"));
    let on_link2 = route_to("10.2.0.0/24", None, Some("10.2.0.5"));
    let through = route_to("10.9.0.0/16", Some("10.2.0.1"), None);
    let odd = route_to("10.8.0.0/16", Some("169.254.1.1"), None);
    let other = Route { link: Some(1), ..route_to("0.0.0.0/0", Some("10.5.0.1"), None) };
    let all = [other, through.clone(), odd.clone(), on_link1.clone(), on_link2.clone()];
    let moves = SourceRouting::default().moves(&tables, &all, LINK);
    let placed: Vec<_> = moves.copies.iter().map(|r| (r.table, r.dst.to_string(), r.prefix)).collect();
    let expected = [
        (100, "0.0.0.0", 0),
        (100, "10.1.0.0", 24),
        (101, "10.2.0.0", 24),
        (101, "10.9.0.0", 16),
        (100, "10.8.0.0", 16),
        (101, "10.8.0.0", 16),
    ];
    assert_eq!(placed, expected.map(|(table, dst, prefix)| (table, dst.to_string(), prefix)));
    assert_eq!(
        moves.leaving,
        [odd, through, on_link2, on_link1],
        "routes through a gateway are deleted first"
    );
    assert!(moves.hints.is_empty());
}

#[test]
fn hints_keep_on_link_routes() {
    let tables = open(&[ip("fd00::5/64", Some("fd00::1"))], &[], None, &[]);
    let on_link = Route { priority: Some(256), ..route_to("fd00::/64", None, None) };
    let local = route_to("fe80::/64", None, None);
    let default_route = route_to("::/0", Some("fd00::1"), None);
    let other_family = route_to("10.1.0.0/24", None, None);
    let all = [on_link.clone(), local.clone(), default_route.clone(), other_family];
    let routing = SourceRouting { hints: true, ..SourceRouting::default() };
    let moves = routing.moves(&tables, &all, LINK);
    assert_eq!(moves.hints, [Route { source: Some("fd00::5".parse().unwrap()), ..on_link.clone() }]);
    assert_eq!(
        moves.leaving,
        [default_route, on_link],
        "link-local routes stay, and those of a family without address"
    );
    assert!(moves.copies.contains(&Route { table: 100, ..local }));
}

#[test]
fn a_route_that_has_its_hint_is_kept() {
    let tables = open(&[ip("10.1.0.5/24", None)], &[], None, &[]);
    let on_link = route_to("10.1.0.0/24", None, Some("10.1.0.5"));
    let routing = SourceRouting { hints: true, ..SourceRouting::default() };
    let moves = routing.moves(&tables, std::slice::from_ref(&on_link), LINK);
    assert_eq!(
        moves,
        RouteMoves { copies: vec![Route { table: 100, ..on_link.clone() }], ..RouteMoves::default() }
    );
}

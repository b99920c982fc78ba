use ipnet::IpNet;

use super::*;

const LINK: u32 = 7;

fn ip(address: &str, gateway: &str) -> Ip {
    Ip { gateway: Some(gateway.parse().unwrap()), ..Ip::new(address.parse().unwrap()) }
}

fn route_to(dst: &str, gateway: Option<&str>, table: u32) -> Route {
    let (net, gateway): (IpNet, _) = (dst.parse().unwrap(), gateway.map(|text| text.parse().unwrap()));
    Route { link: Some(LINK), gateway, table, ..Route::to(net.network(), net.prefix_len()) }
}

fn rule_from(source: &str, table: u32) -> Rule {
    Rule { source: (source.parse().unwrap(), 32), table, priority: None }
}

fn table(routing: &SourceRouting) -> SourceTable {
    routing.find_table(&ip("10.1.0.5/24", "10.1.0.1"), &[rule_from("10.1.0.5", 100)]).unwrap()
}

fn link() -> Link {
    Link { index: LINK, ..Link::default() }
}

fn texts(routes: &[MissingRoute]) -> Vec<&str> {
    routes.iter().map(|way| way.text.as_str()).collect()
}

#[test]
fn missing_routes_are_listed_in_the_order_of_their_repair() {
    let routing = SourceRouting::default();
    assert_eq!(rule_text(&routing, &ip("10.1.0.5/24", "10.1.0.1")), "rule from 10.1.0.5/32 to its own table");
    let (on_link, default_route) =
        ("route to 10.1.0.0/24 in table 100", "default route via 10.1.0.1 in table 100");
    assert_eq!(texts(&missing(&routing, &table(&routing), &[], LINK, false)), [on_link, default_route]);
    let routed = missing(&routing, &table(&routing), &[], LINK, true);
    assert_eq!(texts(&routed), [on_link, default_route]);
    let order: Vec<_> =
        routed[0].routes.iter().map(|route| (route.prefix, route.gateway.is_some())).collect();
    assert_eq!(order, [(32, false), (24, true)], "the gateway comes before the subnet behind it");
    let there = [route_to("0.0.0.0/0", Some("10.1.0.1"), 100), route_to("10.1.0.0/24", None, 100)];
    assert_eq!(missing(&routing, &table(&routing), &there, LINK, false), []);
}

#[test]
fn a_hint_belongs_to_the_main_table() {
    let routing = SourceRouting { hints: true, ..SourceRouting::default() };
    let mut there = vec![route_to("0.0.0.0/0", Some("10.1.0.1"), 100), route_to("10.1.0.0/24", None, 100)];
    let lost = missing(&routing, &table(&routing), &there, LINK, false);
    assert_eq!(texts(&lost), ["route to 10.1.0.0/24 in the main table"]);
    there.push(route_to("10.1.0.0/24", None, route::MAIN));
    assert_eq!(missing(&routing, &table(&routing), &there, LINK, false), []);
}

#[test]
fn missing_recorded_routes_go_to_the_table_that_claims_them() {
    let routing = SourceRouting::default();
    let routes = ["0.0.0.0/0", "10.9.0.0/16"]
        .map(|dst| podwire_cni_spec::Route::new(dst.parse().unwrap(), None))
        .to_vec();
    let recorded = Attachment { routes, ips: vec![ip("10.1.0.5/24", "10.1.0.1")], ..Attachment::default() };
    let there = [route_to("0.0.0.0/0", Some("10.1.0.1"), 100)];
    let lost = missing_recorded(&routing, &[table(&routing)], &there, &recorded, &link());
    assert_eq!(texts(&lost), ["route to 10.9.0.0/16"]);
    assert_eq!(lost[0].routes, [route_to("10.9.0.0/16", Some("10.1.0.1"), 100)]);
}

#[test]
fn a_lost_rule_is_restored_to_the_table_with_its_routes() {
    let (routing, address) = (SourceRouting::default(), ip("10.1.0.5/24", "10.1.0.1"));
    let routes = [
        route_to("10.2.0.0/24", None, 100),
        route_to("10.1.0.0/24", None, 101),
        route_to("10.1.0.0/24", None, route::MAIN),
    ];
    assert_eq!(orphaned_table(&routing, &address, &[], &routes, LINK), Some(101));
    let other = [rule_from("10.1.0.9", 101)];
    assert_eq!(orphaned_table(&routing, &address, &other, &routes, LINK), None, "another address has it");
}

#[test]
fn only_routes_of_the_tables_must_leave_the_main_table() {
    let routing = SourceRouting::default();
    let recorded = Attachment::default();
    let on_link = route_to("10.1.0.0/24", None, route::MAIN);
    let others = route_to("198.51.100.0/24", Some("10.1.0.7"), route::MAIN);
    let found = misplaced(&routing, &[table(&routing)], &[on_link.clone(), others], &recorded, &link());
    assert_eq!(found, [on_link]);
    let hinted = SourceRouting { hints: true, ..routing };
    let hint =
        Route { source: Some("10.1.0.5".parse().unwrap()), ..route_to("10.1.0.0/24", None, route::MAIN) };
    assert_eq!(misplaced(&hinted, &[table(&hinted)], &[hint], &recorded, &link()), []);
}

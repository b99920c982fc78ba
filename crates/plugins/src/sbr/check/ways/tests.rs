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

fn lane(plan: &Plan) -> Lane {
    plan.find_lane(&ip("10.1.0.5/24", "10.1.0.1"), &[rule_from("10.1.0.5", 100)]).unwrap()
}

fn link() -> Link {
    Link { index: LINK, ..Link::default() }
}

fn texts(ways: &[Way]) -> Vec<&str> {
    ways.iter().map(|way| way.text.as_str()).collect()
}

#[test]
fn a_lost_lane_is_told_and_made_again_in_its_order() {
    let plan = Plan::default();
    assert_eq!(
        rule_text(&plan, &ip("10.1.0.5/24", "10.1.0.1")),
        "rule from 10.1.0.5/32 to a table of its own"
    );
    let (wire, way_out) = ("route to 10.1.0.0/24 in table 100", "default route via 10.1.0.1 in table 100");
    assert_eq!(texts(&missing(&plan, &lane(&plan), &[], (LINK, false))), [wire, way_out]);
    let routed = missing(&plan, &lane(&plan), &[], (LINK, true));
    assert_eq!(texts(&routed), [wire, way_out]);
    let told: Vec<_> = routed[0].routes.iter().map(|route| (route.prefix, route.gateway.is_some())).collect();
    assert_eq!(told, [(32, false), (24, true)], "the gateway before what is behind it");
    let there = [route_to("0.0.0.0/0", Some("10.1.0.1"), 100), route_to("10.1.0.0/24", None, 100)];
    assert_eq!(missing(&plan, &lane(&plan), &there, (LINK, false)), []);
}

#[test]
fn a_hint_belongs_to_the_main_table() {
    let plan = Plan { hints: true, ..Plan::default() };
    let mut there = vec![route_to("0.0.0.0/0", Some("10.1.0.1"), 100), route_to("10.1.0.0/24", None, 100)];
    let lost = missing(&plan, &lane(&plan), &there, (LINK, false));
    assert_eq!(texts(&lost), ["route to 10.1.0.0/24 in the main table"]);
    there.push(route_to("10.1.0.0/24", None, route::MAIN));
    assert_eq!(missing(&plan, &lane(&plan), &there, (LINK, false)), []);
}

#[test]
fn recorded_routes_may_be_anywhere_and_go_to_the_lane_when_they_are_nowhere() {
    let plan = Plan::default();
    let routes = ["0.0.0.0/0", "10.9.0.0/16"]
        .map(|dst| podwire_cni_spec::Route::new(dst.parse().unwrap(), None))
        .to_vec();
    let recorded = Attachment { routes, ips: vec![ip("10.1.0.5/24", "10.1.0.1")], ..Attachment::default() };
    let there = [route_to("0.0.0.0/0", Some("10.1.0.1"), 100)];
    let lost = missing_recorded(&plan, &[lane(&plan)], &there, (&recorded, &link()));
    assert_eq!(texts(&lost), ["route to 10.9.0.0/16"]);
    assert_eq!(lost[0].routes, [route_to("10.9.0.0/16", Some("10.1.0.1"), 100)]);
}

#[test]
fn a_rule_that_was_lost_leads_to_the_table_with_its_routes_again() {
    let (plan, address) = (Plan::default(), ip("10.1.0.5/24", "10.1.0.1"));
    let routes = [
        route_to("10.2.0.0/24", None, 100),
        route_to("10.1.0.0/24", None, 101),
        route_to("10.1.0.0/24", None, route::MAIN),
    ];
    assert_eq!(orphaned_table(&plan, &address, (&[], &routes), LINK), Some(101));
    let other = [rule_from("10.1.0.9", 101)];
    assert_eq!(orphaned_table(&plan, &address, (&other, &routes), LINK), None, "it is another's");
}

#[test]
fn only_the_lanes_own_routes_have_to_leave_the_main_table() {
    let plan = Plan::default();
    let recorded = Attachment::default();
    let wire = route_to("10.1.0.0/24", None, route::MAIN);
    let others = route_to("198.51.100.0/24", Some("10.1.0.7"), route::MAIN);
    let found = strays(&plan, &[lane(&plan)], &[wire.clone(), others], (&recorded, &link()));
    assert_eq!(found, [wire]);
    let hinted = Plan { hints: true, ..plan };
    let hint =
        Route { source: Some("10.1.0.5".parse().unwrap()), ..route_to("10.1.0.0/24", None, route::MAIN) };
    assert_eq!(strays(&hinted, &[lane(&hinted)], &[hint], (&recorded, &link())), []);
}

//! The chains and rules that do not depend on Services.

use podwire_ip::IpFamily;
use podwire_netlink::nft::{Base, ChainKind, Field, Hook, IpTerms, Rule, Transaction};

use super::family::NftFamily;
use super::sets::{SetId, TABLE};

const DNAT: i32 = -100;
const FILTER: i32 = 0;
const SNAT: i32 = 100;

const SOURCES: &str = "sources";
const SERVICES: &str = "services";
const REMEMBER: &str = "remember";
const WITHOUT_ENDPOINTS: &str = "without_endpoints";
const WITHOUT_SERVICE: &str = "without_service";

/// The base chains: name, type, hook, priority, and the chains that new connections pass.
const BASE_CHAINS: [(&str, ChainKind, Hook, i32, &[&str]); 6] = [
    ("nat_prerouting", ChainKind::Nat, Hook::Prerouting, DNAT, &[SOURCES, SERVICES]),
    ("nat_output", ChainKind::Nat, Hook::Output, DNAT, &[SOURCES, SERVICES]),
    ("filter_input", ChainKind::Filter, Hook::Input, FILTER, &[REMEMBER, WITHOUT_ENDPOINTS]),
    (
        "filter_forward",
        ChainKind::Filter,
        Hook::Forward,
        FILTER,
        &[REMEMBER, WITHOUT_ENDPOINTS, WITHOUT_SERVICE],
    ),
    (
        "filter_output",
        ChainKind::Filter,
        Hook::Output,
        FILTER,
        &[REMEMBER, WITHOUT_ENDPOINTS, WITHOUT_SERVICE],
    ),
    ("nat_postrouting", ChainKind::Nat, Hook::Postrouting, SNAT, &[]),
];

/// The chain for frontends with the external traffic policy `Local`.
fn local_policy(family: IpFamily) -> String {
    format!("ip{}_local_policy", family.digit())
}

/// The table with all sets, and all chains except the [counted ones](super::counted_chains). The result is the same
/// whether or not parts exist.
pub(super) fn whole(change: &mut Transaction) {
    change.add_table(&TABLE);
    for family in IpFamily::ALL {
        SetId::ALL.iter().for_each(|set| set.add(change, family));
    }
    let regular = [
        (SOURCES, of_both(sources)),
        (SERVICES, of_both(services)),
        (REMEMBER, of_both(remember)),
        (WITHOUT_ENDPOINTS, of_both(without_endpoints)),
        (WITHOUT_SERVICE, of_both(without_service)),
    ];
    for family in IpFamily::ALL {
        write(change, &local_policy(family), &local_policy_rules(family));
    }
    for (name, rules) in regular {
        write(change, name, &rules);
    }
    for (name, kind, hook, priority, jumps) in BASE_CHAINS {
        change.add_base_chain(&TABLE, name, &Base::new(kind, hook, priority));
        write_rules(change, name, &base_rules(kind, hook, jumps));
    }
}

fn write(change: &mut Transaction, name: &str, rules: &[Rule]) {
    change.add_chain(&TABLE, name);
    write_rules(change, name, rules);
}

fn write_rules(change: &mut Transaction, name: &str, rules: &[Rule]) {
    change.flush_chain(&TABLE, name);
    rules.iter().for_each(|rule| change.add_rule(&TABLE, name, rule));
}

fn of_both(rules: fn(IpFamily) -> Vec<Rule>) -> Vec<Rule> {
    IpFamily::ALL.into_iter().flat_map(rules).collect()
}

/// Chains of the type nat see only the first packet of a connection. The others return early for all other packets.
fn base_rules(kind: ChainKind, hook: Hook, jumps: &[&str]) -> Vec<Rule> {
    if hook == Hook::Postrouting {
        let untranslated = Rule::new().no_bit(Field::CtStatus, Rule::DNAT).leave();
        return std::iter::once(untranslated).chain(of_both(masquerade)).collect();
    }
    let established = Rule::new().no_bit(Field::CtState, Rule::NEW).leave();
    let early = Some(established).filter(|_| kind == ChainKind::Filter);
    early.into_iter().chain(jumps.iter().map(|chain| Rule::new().jump(*chain))).collect()
}

fn sources(family: IpFamily) -> Vec<Rule> {
    let [address, protocol, port] = family.frontend();
    let with_source = [address, protocol, port, family.source()];
    let restricted = family.rule().in_set(&family.frontend(), &SetId::Restricted.name(family));
    vec![restricted.not_in_set(&with_source, &SetId::AllowedSources.name(family)).drop()]
}

/// Frontends with the external traffic policy `Local` are found by a set: if each were an element that leads to the chain, the
/// kernel would check this chain, with its maps, for each of them whenever a verdict changes.
fn services(family: IpFamily) -> Vec<Rule> {
    let with_local_policy = family.rule().in_set(&family.frontend(), &SetId::LocalPolicy.name(family));
    vec![
        family.rule().verdict_map(&family.frontend(), &SetId::Frontends.name(family)),
        with_local_policy.goto(local_policy(family)),
    ]
}

/// The node's processes and pods reach all endpoints. A local source in prerouting is impossible, except on loopback.
fn local_policy_rules(family: IpFamily) -> Vec<Rule> {
    let for_node = |rule: Rule| rule.verdict_map(&family.frontend(), &SetId::FrontendsForNode.name(family));
    let pods = family.rule().in_set(&[family.source()], &SetId::PodNetworks.name(family));
    let others = SetId::FrontendsForOthers.name(family);
    vec![
        for_node(pods),
        for_node(family.rule().from_this_host()),
        family.rule().verdict_map(&family.frontend(), &others),
    ]
}

fn remember(family: IpFamily) -> Vec<Rule> {
    let translated = Rule::new().any_bit(Field::CtStatus, Rule::DNAT).family(family.packet_family());
    vec![translated.verdict_map(&family.original_frontend(), &SetId::AffinityTimeouts.name(family))]
}

/// A packet to a frontend that was not translated.
fn without_endpoints(family: IpFamily) -> Vec<Rule> {
    let to = |set: SetId| family.rule().in_set(&family.frontend(), &set.name(family));
    vec![to(SetId::Rejected).reject(), to(SetId::Dropped).drop()]
}

/// A packet to a cluster IP at a port that the Service does not have, or to one that no Service has.
fn without_service(family: IpFamily) -> Vec<Rule> {
    let to = |set: SetId| family.rule().in_set(&[family.destination()], &set.name(family));
    vec![to(SetId::ClusterIps).reject(), to(SetId::ServiceCidrs).drop()]
}

/// A reply must come back through this node if its client does not expect it from the endpoint directly: the endpoint is
/// the client itself, or another node forwards replies to the client by another way.
fn masquerade(family: IpFamily) -> Vec<Rule> {
    let itself = [family.source(), family.destination()];
    let frontend_in = |set: SetId| family.rule().in_set(&family.original_frontend(), &set.name(family));
    let to_cluster_ip =
        family.rule().in_set(&[family.original_destination()], &SetId::ClusterIps.name(family));
    vec![
        family.rule().in_set(&itself, &SetId::Hairpin.name(family)).masquerade_randomly(),
        frontend_in(SetId::Masquerade).masquerade_randomly(),
        frontend_in(SetId::LocalPolicy).from_this_host().masquerade_randomly(),
        to_cluster_ip.not_in_set(&[family.source()], &SetId::PodNetworks.name(family)).masquerade_randomly(),
    ]
}

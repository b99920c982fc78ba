//! The desired content of the policy table: a program as sets, maps, chains and rules.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use podwire_ip::IpFamily;
use podwire_netlink::nft::{Element, Rule, Type, Value, Verdict};
use podwire_policy::program::{Endpoint, Id};
use podwire_policy::{Direction, Program, Protocol};

use super::family::NftFamily;
use super::model::{keyed, DesiredChain, DesiredSet, DesiredTable, SetKind};
use super::names::{drops_by_pod, EGRESS, INGRESS, ITSELF, POD_NETWORKS, POLICY_TABLE};
use super::reasons::Reasons;
use super::{
    base_chains, closed_connections, drop_chains, granted_prefixes, intervals, source_check, stage_rules,
};
use crate::dataplane::node_input::NodeInput;

/// The desired table, with the parts of the program that it was built from. The next build reuses what has not changed.
#[derive(Clone, Debug)]
pub(super) struct PolicyTable {
    pub desired: Arc<DesiredTable>,
    addresses: BTreeMap<Id, Arc<BTreeSet<IpAddr>>>,
    pods: BTreeMap<String, Arc<PodElements>>,
}

/// A pod's elements, each with the name and family of its set.
#[derive(Debug)]
struct PodElements {
    endpoint: Endpoint,
    elements: Vec<(&'static str, IpFamily, Arc<Element>)>,
}

impl PolicyTable {
    /// Builds the table. `previous`: the result of the last build.
    pub fn build(
        program: &Program,
        input: &NodeInput,
        reasons: &Reasons,
        previous: Option<&PolicyTable>,
    ) -> PolicyTable {
        let pods = pod_elements(program, previous);
        let mut builder = Builder { table: DesiredTable::empty(POLICY_TABLE), program, previous };
        base_chains::build(&mut builder.table, input, reasons);
        if input.block_closed {
            closed_connections::build(&mut builder.table);
        }
        drop_chains::build(&mut builder.table, input, reasons);
        source_check::build_routed(&mut builder.table, input);
        granted_prefixes::build(&mut builder.table, program, input);
        for family in IpFamily::ALL {
            builder.add_pod_sets(&pods, family);
            builder.add_peer_sets(family);
            builder.add_networks(POD_NETWORKS, &input.pod_networks, family);
        }
        builder.add_port_sets();
        builder.add_chains(reasons);
        let desired = Arc::new(builder.table);
        PolicyTable { desired, addresses: program.addresses.clone(), pods }
    }
}

/// The elements of the program's pods.
fn pod_elements(program: &Program, previous: Option<&PolicyTable>) -> BTreeMap<String, Arc<PodElements>> {
    let elements = |pod: &String, endpoint: &Endpoint| {
        let same = previous.and_then(|previous| previous.pods.get(pod));
        let same = same.filter(|same| same.endpoint == *endpoint).cloned();
        same.unwrap_or_else(|| Arc::new(PodElements::of(pod, endpoint)))
    };
    program.endpoints.iter().map(|(pod, endpoint)| (pod.clone(), elements(pod, endpoint))).collect()
}

impl PodElements {
    fn of(pod: &str, endpoint: &Endpoint) -> PodElements {
        let mut elements = Vec::new();
        for address in endpoint.addresses.iter().copied() {
            let family = IpFamily::of(address);
            elements.push((ITSELF, family, Element::key(Value::ip(address).and_ip(address))));
            for (name, direction) in [(EGRESS, Direction::Egress), (INGRESS, Direction::Ingress)] {
                let verdict = match endpoint.chain(direction) {
                    Some(chain) => Verdict::Goto(chain.to_string()),
                    None => Verdict::Accept,
                };
                let to_chain = Element::key(Value::ip(address)).verdict(verdict).comment(pod);
                elements.push((name, family, to_chain));
                let counter = Element::key(Value::ip(address)).comment(pod);
                elements.push((drops_by_pod(direction), family, counter));
            }
        }
        let shared = |(name, family, element)| (name, family, Arc::new(element));
        PodElements { endpoint: endpoint.clone(), elements: elements.into_iter().map(shared).collect() }
    }
}

struct Builder<'a> {
    table: DesiredTable,
    program: &'a Program,
    previous: Option<&'a PolicyTable>,
}

impl Builder<'_> {
    /// The sets and maps with an element for each pod address.
    fn add_pod_sets(&mut self, pods: &BTreeMap<String, Arc<PodElements>>, family: IpFamily) {
        let address = family.address_type();
        for (name, kind) in [
            (EGRESS, SetKind::Verdicts(address)),
            (INGRESS, SetKind::Verdicts(address)),
            (ITSELF, SetKind::Keys(vec![address, address])),
            (drops_by_pod(Direction::Egress), SetKind::Counters(address)),
            (drops_by_pod(Direction::Ingress), SetKind::Counters(address)),
        ] {
            let all = pods.values().flat_map(|pod| &pod.elements);
            let of_set = all.filter(|(set, of, _)| *set == name && *of == family);
            let elements = of_set.map(|(_, _, element)| keyed(element.clone())).collect();
            self.table.sets.insert(family.set_name(name), DesiredSet { kind, elements: Arc::new(elements) });
        }
    }

    /// The sets of peers that rules name: addresses, networks and named ports.
    fn add_peer_sets(&mut self, family: IpFamily) {
        for (id, addresses) in &self.program.addresses {
            let name = family.set_name(id.as_str());
            let same = self.previous.filter(|previous| previous.addresses.get(id) == Some(addresses));
            if let Some(set) = same.and_then(|previous| previous.desired.sets.get(&name)) {
                self.table.sets.insert(name, set.clone());
                continue;
            }
            let of_family = addresses.iter().filter(|address| family.has(address));
            let elements = of_family.map(|address| Element::key(Value::ip(*address))).collect();
            self.table.add_set(name, SetKind::Keys(vec![family.address_type()]), elements);
        }
        for (id, networks) in &self.program.networks {
            self.add_networks(id.as_str(), networks, family);
        }
        for (id, ports) in &self.program.named_ports {
            let of_family = ports.iter().filter(|(address, _, _)| family.has(address));
            let element = |(address, protocol, port): &(IpAddr, Protocol, u16)| {
                Element::key(Value::ip(*address).and_protocol(protocol.number()).and_port(*port))
            };
            let kind = SetKind::Keys(vec![family.address_type(), Type::Protocol, Type::Port]);
            self.table.add_set(family.set_name(id.as_str()), kind, of_family.map(element).collect());
        }
    }

    fn add_networks(&mut self, id: &str, networks: &[IpNet], family: IpFamily) {
        let of_family: Vec<IpNet> = networks.iter().copied().filter(|net| family.has(&net.addr())).collect();
        let kind = SetKind::Intervals(family.address_type());
        self.table.add_set(family.set_name(id), kind, intervals::elements(&of_family));
    }

    /// The sets of single ports that rules name.
    fn add_port_sets(&mut self) {
        for (id, ranges) in &self.program.ports {
            let ports = stage_rules::ports_in_set(ranges);
            let keys = ports.iter().map(|port| Value::protocol(port.protocol.number()).and_port(port.first));
            let elements: Vec<Element> = keys.map(Element::key).collect();
            if !elements.is_empty() {
                let kind = SetKind::Keys(vec![Type::Protocol, Type::Port]);
                self.table.add_set(id.as_str().to_owned(), kind, elements);
            }
        }
    }

    /// The chains of pods and of stages.
    fn add_chains(&mut self, reasons: &Reasons) {
        for (id, chain) in &self.program.chains {
            let jumps = chain.stages.iter().map(|stage| Rule::new().jump(stage.as_str()));
            self.add_chain(id, || jumps.chain([Rule::new().accept()]).collect());
            for stage in &chain.stages {
                let Some(content) = self.program.stages.get(stage) else { continue };
                let program = self.program;
                self.add_chain(stage, || stage_rules::rules(program, content, chain.direction, reasons));
            }
        }
    }

    /// A chain whose name is a hash of its content: a chain of that name in the previous table has the same rules.
    fn add_chain(&mut self, id: &Id, rules: impl FnOnce() -> Vec<Rule>) {
        let same = self.previous.and_then(|previous| previous.desired.chains.get(id.as_str())).cloned();
        let chain = same.unwrap_or_else(|| Arc::new(DesiredChain { base: None, rules: rules() }));
        self.table.chains.insert(id.to_string(), chain);
    }
}

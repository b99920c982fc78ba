//! The desired content of the policy table: the compiled policies ([`Program`]) as sets, maps, chains and rules.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use podwire_ip::IpFamily;
use podwire_netlink::nft::{Element, IpTerms, Rule, Type, Value, Verdict};
use podwire_policy::program::{Endpoint, Id, PortRange};
use podwire_policy::{Direction, Program, Protocol};

use super::family::NftFamily;
use super::model::{keyed, DesiredChain, DesiredSet, DesiredTable, SetKind};
use super::names::{drops_by_pod, EGRESS, GUARDED_PORTS, INGRESS, POD_NETWORKS, POD_TO_ITSELF, POLICY_TABLE};
use super::reasons::Reasons;
use super::{
    base_chains, closed_connections, drop_chains, granted_prefixes, intervals, source_check, stage_rules,
};
use crate::dataplane::node_input::NodeInput;

/// The desired table, with parts of the program that it was built from. The next build compares them with its own
/// program and reuses what has not changed.
#[derive(Clone, Debug)]
pub(super) struct PolicyTable {
    pub desired: Arc<DesiredTable>,
    /// [`Program::addresses`], for comparison with the next program.
    peer_addresses: BTreeMap<Id, Arc<BTreeSet<IpAddr>>>,
    /// By pod, `namespace/name`.
    pods: BTreeMap<String, Arc<PodElements>>,
}

/// The set and map elements of a pod.
#[derive(Debug)]
struct PodElements {
    /// The pod in the program, for comparison with the next program.
    endpoint: Endpoint,
    /// Each with the name and the family of its set.
    elements: Vec<(&'static str, IpFamily, Arc<Element>)>,
}

impl PolicyTable {
    /// Builds the table. `previous`: the result of the last build, whether the kernel has it or not.
    pub fn build(
        program: &Program,
        input: &NodeInput,
        reasons: &Reasons,
        previous: Option<&PolicyTable>,
    ) -> PolicyTable {
        let pods = pod_elements(program, previous);
        let mut builder = Builder { table: DesiredTable::empty(POLICY_TABLE), program, previous };
        base_chains::build(&mut builder.table, input, reasons);
        if input.block_closed_connections {
            closed_connections::build(&mut builder.table);
        }
        drop_chains::build(&mut builder.table, input, reasons);
        // Bridge ports are checked in the bridge table, see `bridge_table`.
        source_check::build_routed(&mut builder.table, input);
        // Maps from the source prefixes that pods were granted to the chains of these pods.
        granted_prefixes::build(&mut builder.table, program, input);
        for family in IpFamily::ALL {
            builder.add_pod_sets(&pods, family);
            builder.add_peer_sets(family);
            builder.add_networks(POD_NETWORKS, &input.pod_networks, family);
        }
        builder.add_port_sets();
        let guarded = input.guarded_ports.iter().map(|port| Element::key(Value::default().and_port(*port)));
        builder.table.add_set(GUARDED_PORTS.into(), SetKind::Keys(vec![Type::Port]), guarded.collect());
        builder.add_chains(reasons);
        let desired = Arc::new(builder.table);
        PolicyTable { desired, peer_addresses: program.addresses.clone(), pods }
    }
}

/// The elements of the program's pods, by `namespace/name`.
fn pod_elements(program: &Program, previous: Option<&PolicyTable>) -> BTreeMap<String, Arc<PodElements>> {
    let elements = |pod: &String, endpoint: &Endpoint| {
        let cached = previous.and_then(|previous| previous.pods.get(pod));
        let unchanged = cached.filter(|cached| cached.endpoint == *endpoint).cloned();
        unchanged.unwrap_or_else(|| Arc::new(PodElements::of(pod, endpoint)))
    };
    program.endpoints.iter().map(|(pod, endpoint)| (pod.clone(), elements(pod, endpoint))).collect()
}

impl PodElements {
    fn of(pod: &str, endpoint: &Endpoint) -> PodElements {
        let mut elements = Vec::new();
        for address in endpoint.addresses.iter().copied() {
            let family = IpFamily::of(address);
            // The key is source and destination: the pod's address twice.
            let to_itself = Element::key(Value::ip(address).and_ip(address));
            elements.push((POD_TO_ITSELF, family, Arc::new(to_itself)));
            for (name, direction) in [(EGRESS, Direction::Egress), (INGRESS, Direction::Ingress)] {
                let verdict = match endpoint.chain(direction) {
                    Some(chain) => Verdict::Goto(chain.to_string()),
                    // No policy selects the pod in this direction. The address still needs an element: without one, the
                    // rules drop its packets if it is in a network of pods only (`POD_NETWORKS`). Accept ends only the
                    // base chain of this direction: ingress is checked after egress.
                    None => Verdict::Accept,
                };
                let verdict_element = Element::key(Value::ip(address)).verdict(verdict).comment(pod);
                elements.push((name, family, Arc::new(verdict_element)));
                // The kernel counts the pod's dropped packets in this element.
                let counter = Element::key(Value::ip(address)).comment(pod);
                elements.push((drops_by_pod(direction), family, Arc::new(counter)));
            }
        }
        PodElements { endpoint: endpoint.clone(), elements }
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
            (POD_TO_ITSELF, SetKind::Keys(vec![address, address])),
            (drops_by_pod(Direction::Egress), SetKind::Counters(address)),
            (drops_by_pod(Direction::Ingress), SetKind::Counters(address)),
        ] {
            let all = pods.values().flat_map(|pod| &pod.elements);
            let of_set = all.filter(|(set, element_family, _)| *set == name && *element_family == family);
            let elements = of_set.map(|(_, _, element)| keyed(element.clone())).collect();
            self.table.sets.insert(family.set_name(name), DesiredSet { kind, elements: Arc::new(elements) });
        }
    }

    /// Sets that rules refer to: peer addresses, peer networks, resolved named ports. Only address sets are reused from
    /// the previous table: they are the largest, and comparing an unchanged one compares only the `Arc` pointers.
    fn add_peer_sets(&mut self, family: IpFamily) {
        for (id, addresses) in &self.program.addresses {
            let name = family.set_name(id.as_str());
            let unchanged =
                self.previous.filter(|previous| previous.peer_addresses.get(id) == Some(addresses));
            if let Some(set) = unchanged.and_then(|previous| previous.desired.sets.get(&name)) {
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

    /// Sets of single ports that rules refer to. Port ranges are compared in the rules themselves, see
    /// [`stage_rules`].
    fn add_port_sets(&mut self) {
        for (id, ranges) in &self.program.ports {
            let single_ports = stage_rules::ports_in_set(ranges);
            // No rule refers to a set without elements.
            if single_ports.is_empty() {
                continue;
            }
            let key = |port: &PortRange| Value::protocol(port.protocol.number()).and_port(port.first);
            let elements = single_ports.iter().map(|port| Element::key(key(port))).collect();
            let kind = SetKind::Keys(vec![Type::Protocol, Type::Port]);
            self.table.add_set(id.as_str().to_owned(), kind, elements);
        }
    }

    /// A chain for all pods with the same policies, and a chain for each of its stages: Admin, NetworkPolicy, Baseline.
    /// A packet that a stage does not decide about returns to the pods' chain. If no stage decides, it is accepted.
    fn add_chains(&mut self, reasons: &Reasons) {
        for (id, chain) in &self.program.chains {
            let jumps = chain.stages.iter().map(|stage| Rule::new().jump(stage.as_str()));
            self.add_chain(id, || jumps.chain([Rule::new().accept()]).collect());
            for stage in &chain.stages {
                // The compiler keeps a stage as long as a chain lists it. If one were missing, the kernel would reject
                // the jump to it, and with it the whole transaction.
                let Some(content) = self.program.stages.get(stage) else { continue };
                let program = self.program;
                self.add_chain(stage, || stage_rules::rules(program, content, chain.direction, reasons));
            }
        }
    }

    /// Adds a chain. A chain of the same name in the previous table has the same rules: the name is a hash of the
    /// direction and the content, and a stage that is in both programs keeps its drop reasons' numbers, which its rules
    /// write into the mark ([`Reasons`]).
    fn add_chain(&mut self, id: &Id, rules: impl FnOnce() -> Vec<Rule>) {
        let cached = self.previous.and_then(|previous| previous.desired.chains.get(id.as_str())).cloned();
        let chain = cached.unwrap_or_else(|| Arc::new(DesiredChain { base: None, rules: rules() }));
        self.table.chains.insert(id.to_string(), chain);
    }
}

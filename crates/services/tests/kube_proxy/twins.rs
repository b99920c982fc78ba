//! Two equal testbeds, one with ours and one with kube-proxy.

use std::collections::BTreeMap;
use std::path::Path;

use podwire_ip::IpFamily;
use podwire_netlink::ct::{self, Filter};
use podwire_netlink::nft::Family;
use podwire_netlink::Socket;
use podwire_services::dataplane::Nftables;
use podwire_services::{Compiler, NodeInput, ObjectName};
use serde_json::Value;

use crate::differences;
use crate::peer::{KubeProxy, ZONE};
use crate::probes::{
    observe, probes, reaches_server, with_port, Effort, Probe, Seen, PATIENT, QUICK, THOROUGH,
};
use crate::testbed::Testbed;
use crate::world::{address, kind_of, node, service_cidr, World};

/// The number of patient rounds: a server out of six is missed in all of them with a probability of 1/500,000.
const ROUNDS: usize = 6;

pub struct Twins {
    ours: Ours,
    theirs: Theirs,
}

struct Ours {
    testbed: Testbed,
    compiler: Compiler,
    nft: Nftables,
    present: Vec<Value>,
}

/// kube-proxy is dropped before its node.
struct Theirs {
    proxy: KubeProxy,
    testbed: Testbed,
}

impl Twins {
    pub fn start(program: &Path) -> Twins {
        let testbed = testbed();
        let theirs = Theirs { proxy: KubeProxy::start(program, &testbed.node), testbed };
        Twins { ours: Ours::new(), theirs }
    }

    /// The differences between both sides, one a line. On a busy machine responses are late, so a world
    /// that differs is compared again with longer timeouts.
    pub fn compare(&mut self, world: &World) -> Vec<String> {
        if self.compare_with(QUICK, world).is_empty() {
            return Vec::new();
        }
        self.compare_with(PATIENT, world)
    }

    fn compare_with(&mut self, effort: Effort, world: &World) -> Vec<String> {
        let (seen, mut differences) = self.compare_sets(effort, &world.without_affinity());
        if world.is_sticky() {
            let expected = self.all_servers(&world.only_sticky(), seen);
            differences.extend(self.compare_affinity(effort, world, &expected));
        }
        differences
    }

    /// Compares what each probe sees. Returns what kube-proxy's saw, too.
    fn compare_sets(&mut self, effort: Effort, world: &World) -> (BTreeMap<Probe, Seen>, Vec<String>) {
        let complaint = self.apply(world);
        let agree = |probe: &Probe, ours: &Seen, theirs: &Seen| match differences::of(&world.name, probe) {
            Some(row) => row.holds(ours, theirs),
            None => ours == theirs,
        };
        let (ours, theirs) = self.settle(effort, &probes(world), agree, |_| false);
        let describe = |(probe, seen): (&Probe, &Seen)| {
            let (theirs, row) = (&theirs[probe], differences::of(&world.name, probe));
            let reason = row.map_or(String::new(), |row| format!("; expected: {}", row.reason));
            (!agree(probe, seen, theirs)).then(|| format!("{probe}: {seen:?}, kube-proxy {theirs:?}{reason}"))
        };
        let differences = complaint.into_iter().chain(ours.iter().filter_map(describe)).collect();
        (theirs, differences)
    }

    /// All that the probes of these Services can see without session affinity.
    fn all_servers(&self, sticky: &World, mut seen: BTreeMap<Probe, Seen>) -> BTreeMap<Probe, Seen> {
        let mut probes = probes(sticky);
        probes.retain(|probe| reaches_server(&seen[probe]));
        for (probe, more) in self.observe(&probes, THOROUGH).into_iter().flatten() {
            seen.entry(probe).or_default().extend(more);
        }
        seen
    }

    /// With session affinity each client reaches one of the endpoints that it reaches without.
    fn compare_affinity(
        &mut self,
        effort: Effort,
        world: &World,
        expected: &BTreeMap<Probe, Seen>,
    ) -> Vec<String> {
        let complaint = self.apply(world);
        let sticky = probes(&world.only_sticky());
        let is_right = |probe: &Probe, seen: &Seen| seen.len() == 1 && seen.is_subset(&expected[probe]);
        let agree = |probe: &Probe, ours: &Seen, theirs: &Seen| {
            if sticky.contains(probe) {
                is_right(probe, ours) && is_right(probe, theirs)
            } else {
                ours == theirs
            }
        };
        // A client that uses several frontends at the same time may get another endpoint until all know the first one.
        let forget = |probe: &Probe| sticky.contains(probe);
        let (ours, theirs) = self.settle(effort, &probes(world), agree, forget);
        let describe = |(probe, seen): (&Probe, &Seen)| {
            let (theirs, expected) = (&theirs[probe], &expected[probe]);
            let text = || {
                format!(
                    "{probe} with affinity: {seen:?}, kube-proxy {theirs:?}, without affinity {expected:?}"
                )
            };
            (!agree(probe, seen, theirs)).then(text)
        };
        complaint.into_iter().chain(ours.iter().filter_map(describe)).collect()
    }

    /// Tries probes on both sides, and goes on with those on which the sides do not agree: few connections do not reach all
    /// endpoints. Returns what ours saw, and what kube-proxy's: in all patient rounds, or in the last one where `forget`
    /// says so.
    fn settle(
        &self,
        effort: Effort,
        probes: &[Probe],
        agree: impl Fn(&Probe, &Seen, &Seen) -> bool,
        forget: impl Fn(&Probe) -> bool,
    ) -> (BTreeMap<Probe, Seen>, BTreeMap<Probe, Seen>) {
        let [mut ours, mut theirs] = self.observe(probes, effort);
        for round in 0..ROUNDS {
            let doubtful = probes.iter().filter(|probe| !agree(probe, &ours[probe], &theirs[probe]));
            let doubtful: Vec<Probe> = doubtful.cloned().collect();
            if doubtful.is_empty() {
                break;
            }
            let [more_ours, more_theirs] = self.observe(&doubtful, PATIENT);
            for (all, more) in [(&mut ours, more_ours), (&mut theirs, more_theirs)] {
                for (probe, mut seen) in more {
                    if round > 0 && !forget(&probe) {
                        seen.extend(all.remove(&probe).unwrap_or_default());
                    }
                    all.insert(probe, seen);
                }
            }
        }
        (ours, theirs)
    }

    /// Brings both sides to a world. Returns a complaint of ours about its objects: they have no mistakes.
    fn apply(&mut self, world: &World) -> Option<String> {
        let complaint = self.ours.apply(&world.objects);
        self.theirs.proxy.apply(&self.theirs.testbed.node, &world.objects);
        for testbed in [&self.ours.testbed, &self.theirs.testbed] {
            testbed.node.inside(forget_flows);
        }
        complaint
    }

    fn observe(&self, probes: &[Probe], effort: Effort) -> [BTreeMap<Probe, Seen>; 2] {
        observe([&self.ours.testbed, &self.theirs.testbed], probes, effort)
    }
}

impl Ours {
    fn new() -> Ours {
        let testbed = testbed();
        let pod_networks = ["10.1.0.0/24", "fd00:1::/64"].map(|net| net.parse().unwrap()).into();
        let mut compiler =
            Compiler::new(NodeInput { name: "n".into(), pod_networks, ..NodeInput::default() });
        [node(ZONE), service_cidr()].into_iter().for_each(|object| compiler.put(object));
        let nft = testbed.node.inside(|| Nftables::open().unwrap());
        Ours { testbed, compiler, nft, present: Vec::new() }
    }

    fn apply(&mut self, objects: &[Value]) -> Option<String> {
        let before = std::mem::replace(&mut self.present, objects.to_vec());
        for object in before.iter().filter(|object| !self.present.contains(object)) {
            let kind = kind_of(object);
            self.compiler.objects().remove(kind, &ObjectName::of(kind, object));
        }
        for object in self.present.iter().filter(|object| !before.contains(object)) {
            self.compiler.put(object.clone());
        }
        let changes = self.compiler.take_changes();
        let (desired, nft) = (self.compiler.desired(), &mut self.nft);
        self.testbed.node.inside(|| nft.apply(desired, &changes).unwrap());
        // A slice may arrive before its Service, so this is not a mistake of a world.
        let mistakes =
            desired.problems.iter().filter(|problem| !problem.text.starts_with("there is no Service"));
        let problems: Vec<String> = mistakes.map(ToString::to_string).collect();
        (!problems.is_empty()).then(|| format!("ours reports {problems:?}"))
    }
}

/// A testbed whose servers have a second port.
fn testbed() -> Testbed {
    let testbed = Testbed::new(3);
    let Testbed { node, pods, outside, remote } = &testbed;
    let both = |server: &str, port: u16| {
        IpFamily::ALL.map(|family| with_port(&address(server, family), port.into()))
    };
    let second = [
        (&pods[0], "1", "1b"),
        (&pods[1], "2", "2b"),
        (&pods[2], "3", "3b"),
        (remote, "r", "rb"),
        (node, "n", "nb"),
        (outside, "o", "ob"),
    ];
    for (namespace, server, name) in second {
        namespace.serve(name, &both(server, 9090));
    }
    outside.serve("o", &both("o", 8080));
    // Packets to an external address that no Service has would go back and forth between the node and this host.
    outside.run(
        "ip rule add iif eth0 to 198.51.100.0/24 blackhole; ip -6 rule add iif eth0 to fd00:7::/64 blackhole",
    );
    testbed
}

/// Deletes all flows of the calling thread's namespace: a new one from the same port must not follow an old one.
fn forget_flows() {
    let mut socket = Socket::netfilter().unwrap();
    for family in [Family::Ip, Family::Ip6] {
        let all = Filter {
            family,
            service: None,
            source: None,
            destination: None,
            answers_from: None,
            answers_to: None,
        };
        ct::delete(&mut socket, &all).unwrap();
    }
}

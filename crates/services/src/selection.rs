//! kube-proxy's choice of endpoints: ready ones, those that topology hints name, or terminating ones as a last resort.

use std::net::SocketAddr;

use crate::choice::Choice;
use crate::endpoints::Endpoint;

/// The endpoints of a Service port for the clients of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selected {
    /// For the traffic policy `Cluster`.
    pub cluster: Vec<SocketAddr>,
    /// For the traffic policy `Local`.
    pub local: Vec<SocketAddr>,
    /// All that accept connections, whatever policies and hints say.
    pub serving: Vec<SocketAddr>,
    /// Whether there is an endpoint on any node.
    pub any: bool,
}

/// Which ready endpoints the hints leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Topology {
    Everywhere,
    SameNode,
    SameZone,
}

pub(crate) fn select(endpoints: &[Endpoint], node: &str, zone: Option<&str>) -> Selected {
    let chosen = |choices: Vec<Choice>| -> Vec<SocketAddr> {
        let all = endpoints.iter().zip(choices);
        all.filter(|(_, choice)| choice.is_chosen()).map(|(endpoint, _)| endpoint.addr).collect()
    };
    let serving = endpoints.iter().filter(|endpoint| endpoint.serving);
    Selected {
        cluster: chosen(cluster_choices(endpoints, node, zone)),
        local: chosen(local_choices(endpoints)),
        serving: serving.map(|endpoint| endpoint.addr).collect(),
        any: endpoints.iter().any(|endpoint| endpoint.ready || endpoint.is_draining()),
    }
}

/// The decision about each endpoint with the traffic policy `Cluster`.
pub(crate) fn cluster_choices(endpoints: &[Endpoint], node: &str, zone: Option<&str>) -> Vec<Choice> {
    let topology = topology(endpoints, node, zone);
    let hinted = |hints: &[String], mine: Option<&str>| hints.iter().any(|hint| Some(hint.as_str()) == mine);
    let of_ready = |endpoint: &Endpoint| match topology {
        Topology::Everywhere => Choice::Ready,
        Topology::SameNode if hinted(&endpoint.nodes, Some(node)) => Choice::SameNode,
        Topology::SameNode => Choice::OtherNodes,
        Topology::SameZone if hinted(&endpoint.zones, zone) => Choice::SameZone,
        Topology::SameZone => Choice::OtherZones,
    };
    choose(endpoints, |endpoint| if endpoint.ready { of_ready(endpoint) } else { of_unready(endpoint) })
}

/// The decision about each endpoint with the traffic policy `Local`. Hints do not count.
pub(crate) fn local_choices(endpoints: &[Endpoint]) -> Vec<Choice> {
    choose(endpoints, |endpoint| {
        if !endpoint.is_local() {
            Choice::NotLocal
        } else if endpoint.ready {
            Choice::Ready
        } else {
            of_unready(endpoint)
        }
    })
}

fn of_unready(endpoint: &Endpoint) -> Choice {
    if endpoint.is_draining() {
        Choice::Terminating
    } else if endpoint.terminating {
        Choice::Ended
    } else {
        Choice::NotReady
    }
}

/// If no endpoint is chosen, those that terminate and still serve are.
fn choose(endpoints: &[Endpoint], rule: impl Fn(&Endpoint) -> Choice) -> Vec<Choice> {
    let mut choices: Vec<Choice> = endpoints.iter().map(rule).collect();
    if !choices.iter().any(|choice| choice.is_chosen()) {
        let draining = choices.iter_mut().filter(|choice| **choice == Choice::Terminating);
        draining.for_each(|choice| *choice = Choice::LastResort);
    }
    choices
}

/// Hints count only if all ready endpoints have them and one names this node or its zone. Otherwise the controller has
/// not caught up with a change, and a part of the endpoints would get all connections.
fn topology(endpoints: &[Endpoint], node: &str, zone: Option<&str>) -> Topology {
    let complete = |hints: fn(&Endpoint) -> &[String], mine: &str| {
        let ready = || endpoints.iter().filter(|endpoint| endpoint.ready);
        ready().all(|endpoint| !hints(endpoint).is_empty())
            && ready().any(|endpoint| hints(endpoint).iter().any(|hint| hint == mine))
    };
    if complete(|endpoint| &endpoint.nodes, node) {
        Topology::SameNode
    } else if zone.is_some_and(|zone| complete(|endpoint| &endpoint.zones, zone)) {
        Topology::SameZone
    } else {
        Topology::Everywhere
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An endpoint `10.0.0.N:80`, described by words.
    fn endpoint(number: u8, words: &str) -> Endpoint {
        let mut endpoint = Endpoint {
            addr: SocketAddr::new([10, 0, 0, number].into(), 80),
            ready: true,
            serving: true,
            terminating: false,
            local: Some(false),
            zones: Vec::new(),
            nodes: Vec::new(),
        };
        for word in words.split_whitespace() {
            match word.split_once('=') {
                Some(("zone", name)) => endpoint.zones.push(name.into()),
                Some(("node", name)) => endpoint.nodes.push(name.into()),
                _ => match word {
                    "local" => endpoint.local = Some(true),
                    "anywhere" => endpoint.local = None,
                    "unready" => (endpoint.ready, endpoint.serving) = (false, false),
                    "draining" => (endpoint.ready, endpoint.terminating) = (false, true),
                    "gone" => (endpoint.ready, endpoint.serving, endpoint.terminating) = (false, false, true),
                    "published" => (endpoint.ready, endpoint.terminating) = (true, true),
                    other => panic!("{other}"),
                },
            }
        }
        endpoint
    }

    /// The last parts of the addresses.
    fn numbers(addrs: &[SocketAddr]) -> String {
        let last = |addr: &SocketAddr| addr.ip().to_string().rsplit('.').next().unwrap().to_owned();
        addrs.iter().map(last).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn endpoints_are_selected_as_kube_proxy_does() {
        // Endpoints; those for the policy Cluster; those for the policy Local; whether there is any.
        let cases: &[(&[&str], &str, &str, bool)] = &[
            (&[], "", "", false),
            (&["", "local", "unready local"], "1 2", "2", true),
            (&["anywhere"], "1", "", true),
            (&["unready", "gone local"], "", "", false),
            // Terminating endpoints are a last resort, for each policy by itself.
            (&["", "draining"], "1", "", true),
            (&["draining", "unready"], "1", "", true),
            (&["", "draining local"], "1", "2", true),
            (&["local", "draining local"], "1", "1", true),
            (&["draining local", "draining"], "1 2", "1", true),
            // publishNotReadyAddresses: terminating endpoints are ready.
            (&["published", "draining"], "1", "", true),
            // Zone hints.
            (&["zone=z", "zone=y"], "1", "", true),
            (&["zone=z zone=y", "zone=y local"], "1", "2", true),
            (&["zone=z", ""], "1 2", "", true),
            (&["zone=x", "zone=y"], "1 2", "", true),
            (&["zone=z unready", "zone=y"], "2", "", true),
            (&["zone=z", "unready"], "1", "", true),
            (&["zone=z", "draining"], "1", "", true),
            // Without ready endpoints hints do not count.
            (&["draining zone=z", "draining zone=y"], "1 2", "", true),
            // Node hints take precedence.
            (&["node=n zone=z local", "node=m zone=z"], "1", "1", true),
            (&["node=m zone=z", "node=m zone=y"], "1", "", true),
            (&["node=n zone=z", "zone=z", "zone=y"], "1 2", "", true),
        ];
        let mut failures = Vec::new();
        for (words, cluster, local, any) in cases {
            let endpoints: Vec<Endpoint> =
                (1..).zip(*words).map(|(number, words)| endpoint(number, words)).collect();
            let found = select(&endpoints, "n", Some("z"));
            let found = (numbers(&found.cluster), numbers(&found.local), found.any);
            if found != (cluster.to_string(), local.to_string(), *any) {
                failures.push(format!("{words:?}: {found:?}"));
            }
        }
        assert!(failures.is_empty(), "{failures:#?}");
    }

    #[test]
    fn each_decision_has_its_reason() {
        use Choice::{
            Ended, LastResort, NotLocal, NotReady, OtherNodes, OtherZones, Ready, SameNode, SameZone,
            Terminating,
        };
        let cases: &[(&[&str], &[Choice], &[Choice])] = &[
            (
                &["local", "", "unready local", "draining local", "gone local"],
                &[Ready, Ready, NotReady, Terminating, Ended],
                &[Ready, NotLocal, NotReady, Terminating, Ended],
            ),
            (&["draining", "draining local"], &[LastResort, LastResort], &[NotLocal, LastResort]),
            (&["zone=z", "zone=y local"], &[SameZone, OtherZones], &[NotLocal, Ready]),
            (&["node=n local", "node=m"], &[SameNode, OtherNodes], &[Ready, NotLocal]),
        ];
        for (words, cluster, local) in cases {
            let endpoints: Vec<Endpoint> =
                (1..).zip(*words).map(|(number, words)| endpoint(number, words)).collect();
            assert_eq!(cluster_choices(&endpoints, "n", Some("z")), *cluster, "{words:?}");
            assert_eq!(local_choices(&endpoints), *local, "{words:?}");
        }
    }

    #[test]
    fn a_node_without_a_zone_ignores_zone_hints() {
        let endpoints = [endpoint(1, "zone=z"), endpoint(2, "zone=")];
        assert_eq!(numbers(&select(&endpoints, "n", None).cluster), "1 2");
    }
}

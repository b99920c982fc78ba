//! Reading policies: from what was written to rules, with a warning wherever a user would need one.
//!
//! What the API server would refuse should never get here. If it does (a file that no server has seen, a newer API), it is
//! read in the strictest sense. A NetworkPolicy only allows, so a part that makes no sense allows nothing. A rule of a
//! ClusterNetworkPolicy *fails closed*, in the API's own words: an Accept that cannot be understood matches no traffic, a
//! Deny or a Pass that cannot be understood is a "Deny all".

mod cluster_network_policy;
mod network_policy;

use ipnet::IpNet;

use crate::api::{ClusterNetworkPolicy, LabelSelector, NamespacedPod, NetworkPolicy};
use crate::rule::{Namespaces, Policy, Selection};
use crate::selector::Selector;
use crate::warning::Warner;
use crate::{Kind, Warning};

/// Reads a NetworkPolicy.
pub(crate) fn network_policy(policy: &NetworkPolicy, warnings: &mut Vec<Warning>) -> Policy {
    let object = format!("NetworkPolicy {}/{}", policy.metadata.namespace, policy.metadata.name);
    network_policy::read(policy, &mut Warner::about(object, warnings))
}

/// Reads a ClusterNetworkPolicy.
pub(crate) fn cluster_network_policy(policy: &ClusterNetworkPolicy, warnings: &mut Vec<Warning>) -> Policy {
    let object = format!("ClusterNetworkPolicy {}", policy.metadata.name);
    cluster_network_policy::read(policy, &mut Warner::about(object, warnings))
}

/// A selector; `None`, and a warning, if it makes no sense.
fn selector(written: &LabelSelector, place: &str, warner: &mut Warner<'_>) -> Option<Selector> {
    warner.unknown(place, &written.unknown);
    for (index, requirement) in written.match_expressions.iter().enumerate() {
        warner.unknown(&format!("{place}.matchExpressions[{index}]"), &requirement.unknown);
    }
    match Selector::read(written) {
        Ok(selector) => Some(selector),
        Err(reason) => {
            warner.say(place, Kind::Refused, format!("{reason}: it selects nothing"));
            None
        }
    }
}

/// All pods of the namespaces.
fn whole_namespaces(written: &LabelSelector, place: &str, warner: &mut Warner<'_>) -> Option<Selection> {
    let namespaces = Namespaces::Labelled(selector(written, place, warner)?);
    Some(Selection { namespaces, pods: Selector::everything() })
}

/// Pods of namespaces.
fn namespaced_pods(written: &NamespacedPod, place: &str, warner: &mut Warner<'_>) -> Option<Selection> {
    warner.unknown(place, &written.unknown);
    let namespaces = selector(&written.namespace_selector, &format!("{place}.namespaceSelector"), warner);
    let pods = selector(&written.pod_selector, &format!("{place}.podSelector"), warner);
    Some(Selection { namespaces: Namespaces::Labelled(namespaces?), pods: pods? })
}

/// A network. The API takes `10.1.2.3/8` for `10.0.0.0/8`, and so do we, but it was hardly meant.
fn network(written: &str, place: &str, warner: &mut Warner<'_>) -> Option<IpNet> {
    let Ok(network) = written.parse::<IpNet>() else {
        warner.say(place, Kind::Refused, format!("{written:?} is no network such as 10.0.0.0/8"));
        return None;
    };
    if network != network.trunc() {
        let text = format!("{written} has bits behind the prefix: it is read as {}", network.trunc());
        warner.say(place, Kind::Suspicious, text);
    }
    Some(network.trunc())
}

/// A port number, if it is one.
fn port_number(written: i64) -> Option<u16> {
    u16::try_from(written).ok().filter(|port| *port > 0)
}

//! The desired state as elements of sets and maps.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use podwire_ip::IpFamily;
use podwire_netlink::nft::{Element, Value, Verdict};

use super::counted_chains::{CountedChain, FIRST_FOR_OTHERS};
use super::sets::SetId;
use crate::{Backend, Clients, Desired, Frontend, Reach, Refusal};

/// The longest comment that nft reads back (`NFTNL_UDATA_COMMENT_MAXLEN`).
const MAX_COMMENT: usize = 127;

/// Elements by their set, and by what identifies them there: the key, and whether it ends a range.
pub(super) type Elements = BTreeMap<(SetId, IpFamily, Vec<u8>, bool), Element>;

pub(super) fn insert(to: &mut Elements, set: SetId, family: IpFamily, element: Element) {
    to.insert((set, family, element.key.bytes().to_vec(), element.ends_range), element);
}

/// The key of a frontend.
pub(super) fn key(frontend: &Frontend) -> Value {
    Value::ip(frontend.ip).and_protocol(frontend.protocol.number()).and_port(frontend.port)
}

/// The elements of one frontend.
pub(super) fn of_frontend(frontend: &Frontend, backend: &Backend) -> Elements {
    let family = IpFamily::of(frontend.ip);
    let mut elements = Elements::new();
    let mut add = |set: SetId, element: Element| insert(&mut elements, set, family, element);
    let plain = || Element::key(key(frontend));
    let goto = |chain: String| plain().verdict(Verdict::Goto(chain));
    let named = |element: Element| element.comment(comment(&backend.service));

    let [for_all, for_others] = [Clients::All, Clients::Others].map(|clients| {
        let count = backend.endpoints_for(clients).len();
        (count > 0).then(|| goto(chain(backend, family, clients, count).name()))
    });
    match backend.reach {
        Reach::ClusterIp | Reach::Cluster => {
            for_all.into_iter().for_each(|element| add(SetId::Frontends, named(element)))
        }
        Reach::Local => {
            for_all.into_iter().for_each(|element| add(SetId::FrontendsForNode, named(element)));
            for_others.into_iter().for_each(|element| add(SetId::FrontendsForOthers, named(element)));
        }
    }
    for (first, endpoints) in [(0, &backend.endpoints), (FIRST_FOR_OTHERS, &backend.local_endpoints)] {
        for (index, endpoint) in (first..).zip(endpoints) {
            let element = Element::key(key(frontend).and_mark(index)).to(endpoint_value(endpoint));
            add(SetId::Endpoints, element);
        }
    }
    match backend.reach {
        Reach::ClusterIp => {}
        Reach::Cluster => add(SetId::Masquerade, plain()),
        Reach::Local => add(SetId::LocalPolicy, plain()),
    }
    if let Some(timeout) = backend.affinity {
        add(SetId::AffinityTimeouts, goto(CountedChain::Affinity(family, timeout).name()));
    }
    match backend.refusal() {
        Some(Refusal::Reject) => add(SetId::Rejected, named(plain())),
        Some(Refusal::Drop) => add(SetId::Dropped, named(plain())),
        None => {}
    }
    if let Some(ranges) = &backend.source_ranges {
        add(SetId::Restricted, plain());
        for range in ranges {
            let [first, last] = [range.network(), range.broadcast()].map(|ip| key(frontend).and_ip(ip));
            add(SetId::AllowedSources, Element::key(first).up_to(last));
        }
    }
    elements
}

/// The chains that the elements of a frontend refer to.
pub(super) fn chains_of(frontend: &Frontend, backend: &Backend) -> BTreeSet<CountedChain> {
    let family = IpFamily::of(frontend.ip);
    let mut chains = BTreeSet::new();
    for clients in [Clients::All, Clients::Others] {
        let count = backend.endpoints_for(clients).len();
        if count > 0 {
            let chain = chain(backend, family, clients, count);
            chains.extend([Some(chain), chain.next()].into_iter().flatten());
        }
    }
    chains.extend(backend.affinity.map(|timeout| CountedChain::Affinity(family, timeout)));
    chains
}

fn chain(backend: &Backend, family: IpFamily, clients: Clients, count: usize) -> CountedChain {
    // At most 65535: see `claims`.
    let count = count as u32;
    if backend.affinity.is_some() {
        CountedChain::Sticky(family, clients, count)
    } else {
        CountedChain::Random(family, clients, count)
    }
}

pub(super) fn endpoint_value(endpoint: &SocketAddr) -> Value {
    Value::ip(endpoint.ip()).and_port(endpoint.port())
}

/// The elements that belong to no frontend: those of all networks, and those of these addresses.
pub(super) fn of_node(desired: &Desired, ips: &BTreeSet<IpAddr>) -> Elements {
    let mut elements = Elements::new();
    for ip in ips {
        let family = IpFamily::of(*ip);
        if desired.cluster_ips.contains(ip) {
            insert(&mut elements, SetId::ClusterIps, family, Element::key(Value::ip(*ip)));
        }
        if desired.local_endpoint_ips.contains(ip) {
            insert(&mut elements, SetId::Hairpin, family, Element::key(Value::ip(*ip).and_ip(*ip)));
        }
    }
    let networks =
        [(SetId::PodNetworks, &desired.pod_networks), (SetId::ServiceCidrs, &desired.service_cidrs)];
    for (set, networks) in networks {
        for network in networks {
            for element in Element::range(network.network(), network.broadcast()) {
                insert(&mut elements, set, IpFamily::of_net(*network), element);
            }
        }
    }
    elements
}

/// The name of a Service port, as far as nft reads it.
pub(super) fn comment(service: &str) -> &str {
    let mut end = service.len().min(MAX_COMMENT);
    while !service.is_char_boundary(end) {
        end -= 1;
    }
    &service[..end]
}

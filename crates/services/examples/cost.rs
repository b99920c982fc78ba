//! What Services cost: time to compile and apply them, all at once and after one change. As root, in a namespace of its own:
//! `cargo run --release -p podwire-services --example cost -- 10000 10`. With `Local` as the third argument, each is an external
//! IP, too, with the external traffic policy `Local`.

use std::time::Instant;

use podwire_netlink::sys;
use podwire_services::dataplane::Nftables;
use podwire_services::{Changes, Compiler, NodeInput};
use serde_json::{json, Value};

fn service(number: u32, is_local: bool) -> Value {
    let ip = std::net::Ipv4Addr::from(0x0a60_0000 + number);
    let mut service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": "x", "name": format!("s{number}") },
        "spec": { "clusterIP": ip, "ports": [{ "port": 80 }] } });
    if is_local {
        service["spec"]["externalTrafficPolicy"] = "Local".into();
        service["spec"]["externalIPs"] = json!([std::net::Ipv4Addr::from(0xc612_0000 + number)]);
    }
    service
}

fn slice(number: u32, first: u32, count: u32) -> Value {
    let endpoint = |index: u32| {
        let ip = std::net::Ipv4Addr::from(0x0b00_0000 + number * 256 + first + index);
        json!({ "addresses": [ip], "nodeName": if index == 0 { "n" } else { "m" } })
    };
    json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "namespace": "x", "name": format!("s{number}"), "labels": { "kubernetes.io/service-name": format!("s{number}") } },
        "ports": [{ "port": 8080 }], "endpoints": (0..count).map(endpoint).collect::<Vec<_>>() })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| arguments.get(index).map(|text| text.parse::<u32>()).transpose();
    let (services, endpoints) = (number(0)?.unwrap_or(1000), number(1)?.unwrap_or(10));
    let is_local = arguments.get(2).is_some_and(|text| text == "Local");
    sys::new_network_namespace()?;
    let mut objects = Compiler::new(NodeInput { name: "n".into(), ..NodeInput::default() });
    for number in 1..=services {
        objects.put(service(number, is_local));
        objects.put(slice(number, 0, endpoints));
    }
    let mut nft = Nftables::open()?;
    let steps: [(&str, Option<Value>); 5] = [
        ("all Services", None),
        ("nothing", None),
        ("one endpoint replaced", Some(slice(1, 1, endpoints))),
        ("one endpoint less", Some(slice(2, 0, endpoints - 1))),
        ("one Service more", Some(service(services + 1, is_local))),
    ];
    for (name, change) in steps {
        change.into_iter().for_each(|object| objects.put(object));
        let begin = Instant::now();
        let changes = objects.take_changes();
        let state = objects.desired();
        let compiled = begin.elapsed();
        let change = nft.apply(state, &changes)?;
        println!(
            "{name}: compile {compiled:?}, apply {:?}, {} elements",
            begin.elapsed() - compiled,
            change.elements
        );
    }
    let mut other = podwire_netlink::nft::Transaction::new();
    other.add_table(&podwire_netlink::nft::Table::named(podwire_netlink::nft::Family::Inet, "other"));
    other.commit(&mut podwire_netlink::Socket::netfilter()?)?;
    let begin = Instant::now();
    let change = nft.apply(objects.desired(), &Changes::none())?;
    println!("another table changed: {:?}, {} elements", begin.elapsed(), change.elements);
    let begin = Instant::now();
    let change = Nftables::open()?.apply(objects.desired(), &Changes::All)?;
    println!("after a restart: {:?}, {} elements", begin.elapsed(), change.elements);
    Ok(())
}

//! What Services cost: time to compile and apply them, all at once and after one change. As root, in a namespace of its own:
//! `cargo run --release -p podwire-services --example cost -- 10000 10`.

use std::time::Instant;

use podwire_netlink::sys;
use podwire_services::dataplane::Nftables;
use podwire_services::{Compiler, NodeInput};
use serde_json::{json, Value};

fn service(number: u32) -> Value {
    let ip = std::net::Ipv4Addr::from(0x0a60_0000 + number);
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": "x", "name": format!("s{number}") },
        "spec": { "clusterIP": ip, "ports": [{ "port": 80 }] } })
}

fn slice(number: u32, first: u32, count: u32) -> Value {
    let endpoint = |index: u32| {
        let ip = std::net::Ipv4Addr::from(0x0b00_0000 + number * 256 + first + index);
        json!({ "addresses": [ip], "nodeName": "m" })
    };
    json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "namespace": "x", "name": format!("s{number}"), "labels": { "kubernetes.io/service-name": format!("s{number}") } },
        "ports": [{ "port": 8080 }], "endpoints": (0..count).map(endpoint).collect::<Vec<_>>() })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u32>());
    let services = numbers.next().transpose()?.unwrap_or(1000);
    let endpoints = numbers.next().transpose()?.unwrap_or(10);
    sys::new_network_namespace()?;
    let mut objects = Compiler::new(NodeInput { name: "n".into(), ..NodeInput::default() });
    for number in 1..=services {
        objects.put(service(number));
        objects.put(slice(number, 0, endpoints));
    }
    let mut nft = Nftables::open()?;
    let steps: [(&str, Option<Value>); 5] = [
        ("all Services", None),
        ("nothing", None),
        ("one endpoint replaced", Some(slice(1, 1, endpoints))),
        ("one endpoint less", Some(slice(2, 0, endpoints - 1))),
        ("one Service more", Some(service(services + 1))),
    ];
    for (name, change) in steps {
        change.into_iter().for_each(|object| objects.put(object));
        let begin = Instant::now();
        let state = objects.desired();
        let compiled = begin.elapsed();
        let change = nft.apply(state)?;
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
    let change = nft.apply(objects.desired())?;
    println!("another table changed: {:?}, {} elements", begin.elapsed(), change.elements);
    let begin = Instant::now();
    let change = Nftables::open()?.apply(objects.desired())?;
    println!("after a restart: {:?}, {} elements", begin.elapsed(), change.elements);
    Ok(())
}

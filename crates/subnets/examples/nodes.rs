//! Prints the nodes of a cluster at every change.
//!
//! ```text
//! cargo run -p podwire-subnets --example nodes -- etcd http://127.0.0.1:2379
//! cargo run -p podwire-subnets --example nodes -- sqlite /var/lib/podwire/cluster.db
//! cargo run -p podwire-subnets --example nodes -- list nodes.json
//! ```
//!
//! With an additional IPv4 address, it first acquires a subnet for a node with that address, and keeps its lease.

use std::error::Error;

use podwire_subnets::{
    Backend, Embedded, Etcd, EtcdOptions, Registration, Snapshot, Source, StaticList, SubnetEnv, Underlay,
};

fn show(snapshot: &Snapshot) {
    println!("snapshot {}: {}", snapshot.number, snapshot.health);
    for node in snapshot.nodes.iter().flat_map(|nodes| nodes.iter()) {
        let pod_cidrs: Vec<String> = node.pod_cidrs.iter().map(|cidr| cidr.to_string()).collect();
        println!(
            "  {:24} {:40} {:?} {}",
            node.name,
            pod_cidrs.join(" "),
            node.underlay.v4,
            node.backend.kind
        );
    }
    for node in snapshot.skipped.iter() {
        println!("  skipped: {}: {}", node.name, node.reason);
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, place, rest @ ..] = &arguments[..] else {
        return Err("nodes etcd|sqlite|list PLACE [ADDRESS]".into());
    };
    let source = match kind.as_str() {
        "etcd" => {
            Source::Etcd(Etcd::new(EtcdOptions { endpoints: vec![place.clone()], ..Default::default() })?)
        }
        "sqlite" => Source::Embedded(Embedded::open(place).await?),
        "list" => Source::Static(StaticList::new(place)),
        other => return Err(format!("{other} is none of etcd, sqlite, list").into()),
    };
    if let Some(address) = rest.first() {
        let underlay = Underlay { v4: Some(address.parse()?), v6: None };
        let backend = Backend::named(&source.network().await?.backend_type);
        let registration =
            Registration { name: address.clone(), underlay, backend, ..Registration::default() };
        let node = source.acquire(&registration).await?;
        print!("{}", SubnetEnv::new(&source.network().await?, node.pod_cidrs, 1500, false).text());
        let keeper = source.clone();
        tokio::spawn(async move { println!("{}", keeper.keep(&node).await) });
    }
    let mut watch = source.watch();
    loop {
        show(&watch.changed().await);
    }
}

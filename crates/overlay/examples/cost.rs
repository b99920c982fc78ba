//! The cost of a large cluster for one node: routes to many peers are created, compared and recreated.
//!
//! `cargo run --release -p podwire-overlay --example cost -- [PEERS]` as root. It uses a new network namespace.

use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::time::Instant;

use ipnet::IpNet;
use podwire_ip::IpFamily;
use podwire_kernel::{Host, Mac};
use podwire_netlink::rt::{address, link};
use podwire_overlay::{
    Backend, Cluster, FirewallOptions, LocalNode, LocalSubnet, Peer, PeerSubnet, Uplink, Vxlan,
};

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let peers = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(5000);
    match run(peers) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cost: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(count: u32) -> Result<(), Failure> {
    podwire_netlink::sys::new_network_namespace()?;
    let mut host = Host::here()?;
    let local = local_node(&mut host)?;
    let networks: Vec<IpNet> = vec!["10.0.0.0/8".parse()?];
    let all = Cluster { networks, local, peers: (0..count).map(peer).collect() };
    let vxlan = Vxlan::default();
    println!("{:<28} {:>9} {:>9} {:>12}", format!("{count} peers"), "changes", "calls", "ms");
    measure(&mut host, "created from nothing", &vxlan, &all)?;
    measure(&mut host, "compared, nothing to do", &vxlan, &all)?;
    let mut less = all.clone();
    let gone = less.peers.pop();
    measure(&mut host, "one peer left", &vxlan, &less)?;
    less.peers.extend(gone);
    measure(&mut host, "one peer joined", &vxlan, &less)?;
    let device = host.get_link(&vxlan.device(IpFamily::V4))?;
    host.route.request(link::delete(&device))?;
    measure(&mut host, "after the device was deleted", &vxlan, &all)?;
    measure(&mut host, "all peers left", &vxlan, &Cluster { peers: Vec::new(), ..all })?;
    Ok(())
}

fn measure(host: &mut Host, what: &str, backend: &dyn Backend, cluster: &Cluster) -> Result<(), Failure> {
    let calls = |host: &mut Host| -> Result<u64, Failure> { Ok(host.route.calls() + host.nft()?.calls()) };
    let (before, start) = (calls(host)?, Instant::now());
    let report = podwire_overlay::apply(
        host,
        backend,
        cluster,
        &FirewallOptions { masquerade: true, ..FirewallOptions::default() },
    )?;
    let spent = start.elapsed();
    if let Some(error) = report.failed.into_iter().next() {
        return Err(error.into());
    }
    let cost = calls(host)? - before;
    println!("{what:<28} {:>9} {cost:>9} {:>12.1}", report.changed.len(), spent.as_secs_f64() * 1000.0);
    Ok(())
}

/// The loopback is the uplink: no packet leaves.
fn local_node(host: &mut Host) -> Result<LocalNode, Failure> {
    let lo = host.get_link("lo")?;
    host.route.request(link::up(&lo))?;
    let local: IpAddr = "172.16.0.1".parse()?;
    host.route.request(address::add(lo.index, local, 12, false))?;
    let uplink = Uplink { index: lo.index, name: lo.name, mtu: 1500, address: local };
    Ok(LocalNode {
        name: "here".into(),
        subnets: vec![LocalSubnet { pod_cidr: "10.255.0.0/24".parse()?, uplink }],
    })
}

fn peer(number: u32) -> Peer {
    let [_, high, middle, low] = number.to_be_bytes();
    let pods = IpNet::V4(ipnet::Ipv4Net::new_assert(Ipv4Addr::new(10, middle, low, 0), 24));
    let address = IpAddr::from([172, 17, middle, low]);
    let vtep_mac = Some(Mac([2, 0, 0, high, middle, low]));
    Peer {
        name: format!("node{number:05}"),
        subnets: vec![PeerSubnet { vtep_mac, ..PeerSubnet::new(pods, address) }],
    }
}

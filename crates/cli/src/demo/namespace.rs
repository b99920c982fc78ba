//! The network namespaces of the demo, and the check for leftovers at its end.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use podwire_kernel::rt::{address, link, route::Route};
use podwire_kernel::veth::Veth;
use podwire_kernel::{firewall, Host, Netns, Owner};
use podwire_netlink::sys;

/// A named network namespace.
pub(super) struct Namespace {
    path: PathBuf,
    netns: Netns,
}

/// A private mount namespace with an empty /run, so that namespaces and files vanish with this process.
pub(super) fn private_mounts() -> Result<()> {
    sys::unshare_mounts()?;
    Ok(sys::mount_tmpfs(Path::new("/run"))?)
}

impl Namespace {
    /// Creates a namespace with its loopback up.
    pub fn new(name: &str) -> Result<Namespace> {
        let path = Path::new("/run/netns").join(name);
        let netns = Netns::create(&path)?;
        let mut host = Host::within(Netns::open(&path)?)?;
        let lo = host.get_link("lo")?;
        host.route.request(link::up(&lo))?;
        Ok(Namespace { path, netns })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn run<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        Ok(self.netns.run(work)?)
    }

    fn host(&self) -> Result<Host> {
        Ok(Host::within(Netns::open(&self.path)?)?)
    }
}

/// Connects the node and the outside host with a veth pair, with an address at each end.
pub(super) fn connect(node: &Namespace, near: &str, outside: &Namespace, far: &str) -> Result<()> {
    let owner = Owner::new("demo:outside", "outside", "uplink");
    let veth = Veth { name: "uplink", owner: &owner, mtu: 0, mac: None, port: None, end: None };
    let made = outside.host().and_then(|mut host| Ok(veth.create(&mut host, &node.netns)?))?;
    for (namespace, name, ip) in [(node, "uplink", near), (outside, made.host.as_str(), far)] {
        let mut host = namespace.host()?;
        let end = host.get_link(name)?;
        let ip: IpAddr = ip.parse().context("an address of the demo")?;
        host.route.request(address::add(end.index, ip, 24, false))?;
        host.route.request(link::up(&end))?;
    }
    // The default route of the node.
    let mut host = node.host()?;
    let gateway = Some(far.parse().context("an address of the demo")?);
    Ok(host.route.request(Route { gateway, ..Route::to(IpAddr::from([0u8; 4]), 0) }.add())?)
}

/// The leftovers in the namespace of the calling thread: what, and how many or which.
pub(super) fn leftovers(state: &Path) -> Result<Vec<(&'static str, String)>> {
    let mut host = Host::here()?;
    let links: Vec<_> = link::list(&mut host.route)?.into_iter().map(|link| link.name).collect();
    firewall::drop_empty_tables(host.nft()?)?;
    let tables = podwire_netlink::nft::list_tables(host.nft()?, None)?.len();
    let leases = files(&state.join("networks/demo")).filter(|name| name.parse::<IpAddr>().is_ok()).count();
    let records = files(&state.join("results")).count();
    Ok(vec![
        ("links", links.join(" ")),
        ("nftables tables", tables.to_string()),
        ("addresses taken", leases.to_string()),
        ("records of pods", records.to_string()),
    ])
}

/// The node's own links and the bridge, which stays for the next pod, are not leaks.
pub(super) fn is_leak(what: &str, found: &str) -> bool {
    match what {
        "links" => found.split(' ').any(|name| !["lo", "uplink", "pods0"].contains(&name)),
        _ => found != "0",
    }
}

fn files(dir: &Path) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let entries = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

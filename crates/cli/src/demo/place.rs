//! Namespaces as places on the demo's stage, and a look around when the play is over.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use podwire_kernel::rt::{address, link, route::Route};
use podwire_kernel::veth::Veth;
use podwire_kernel::{firewall, Host, Netns, Owner};
use podwire_netlink::sys;

/// A network namespace with a name.
pub(super) struct Place {
    path: PathBuf,
    netns: Netns,
}

/// Mounts of our own, and an empty /run in them: namespaces and files that vanish with this process.
pub(super) fn private_machine() -> Result<()> {
    sys::unshare_mounts()?;
    Ok(sys::mount_tmpfs(Path::new("/run"))?)
}

impl Place {
    /// A new one, with its loopback up.
    pub fn new(name: &str) -> Result<Place> {
        let path = Path::new("/run/netns").join(name);
        let netns = Netns::create(&path)?;
        let mut host = Host::within(Netns::open(&path)?)?;
        let lo = host.get_link("lo")?;
        host.route.request(link::up(&lo))?;
        Ok(Place { path, netns })
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

/// A cable between two places, with an address at each end.
pub(super) fn join(node: &Place, near: &str, world: &Place, far: &str) -> Result<()> {
    let owner = Owner::new("demo:world", "world", "uplink");
    let cable = Veth { name: "uplink", owner: &owner, mtu: 0, mac: None, port: None, end: None };
    let made = world.host().and_then(|mut host| Ok(cable.create(&mut host, &node.netns)?))?;
    for (place, name, ip) in [(node, "uplink", near), (world, made.host.as_str(), far)] {
        let mut host = place.host()?;
        let end = host.get_link(name)?;
        let ip: IpAddr = ip.parse().context("an address of the demo")?;
        host.route.request(address::add(end.index, ip, 24, false))?;
        host.route.request(link::up(&end))?;
    }
    // The node's way out, as a real one has it.
    let mut host = node.host()?;
    let gateway = Some(far.parse().context("an address of the demo")?);
    Ok(host.route.request(Route { gateway, ..Route::to(IpAddr::from([0u8; 4]), 0) }.add())?)
}

/// What is left on the node that the calling thread is in: (what, how much or which).
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

/// The node's own links and the bridge, which waits for the next pod, are no leak.
pub(super) fn is_leak(what: &str, found: &str) -> bool {
    match what {
        "links" => found.split(' ').any(|name| !["lo", "uplink", "pods0"].contains(&name)),
        _ => found != "0",
    }
}

fn files(folder: &Path) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let entries = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
}

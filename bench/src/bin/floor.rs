//! podwire-floor: the minimal cost of bridge + host-local.
//!
//! It sends the kernel the fewest messages that an ADD of that chain needs, and does nothing else: it reads no config,
//! checks nothing and has no options. The time that a plugin takes beyond this is the plugin's. It supports as much of
//! CNI as the benchmark needs (ADD, DEL, VERSION) and is not meant for use.

use std::error::Error;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use podwire_netlink::rt::link::{self, attribute as a};
use podwire_netlink::rt::{address, route::Route};
use podwire_netlink::{sys, Batch, Message, Socket};

const BRIDGE: &str = "bench0";
const LEASES: &str = "/var/lib/cni/networks/podwire-bench";
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);
const LAST: Ipv4Addr = Ipv4Addr::new(10, 88, 255, 254);
const PREFIX: u8 = 16;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    match std::env::var("CNI_COMMAND")?.as_str() {
        "ADD" => add(),
        "DEL" => del(),
        _ => {
            println!(r#"{{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}}"#);
            Ok(())
        }
    }
}

fn add() -> Result<()> {
    let (container, pod) = (std::env::var("CNI_CONTAINERID")?, std::env::var("CNI_NETNS")?);
    let ifname = std::env::var("CNI_IFNAME")?;
    let ip = lease(&container, &ifname)?;
    let mut host = Socket::route()?;
    let bridge = match link::find(&mut host, BRIDGE)? {
        Some(bridge) => bridge.index,
        None => create_bridge(&mut host)?,
    };
    let pod = File::open(pod)?;
    host.request(veth(&host_end(&container), &ifname, bridge, &pod))?;
    sys::enter_network_namespace(pod.as_fd())?;
    let mut inside = Socket::route()?;
    let end = link::peek(&inside, &ifname)?;
    let mut everywhere = Route::to(Ipv4Addr::UNSPECIFIED.into(), 0);
    (everywhere.gateway, everywhere.link) = (Some(GATEWAY.into()), Some(end.index));
    let mut batch = Batch::new();
    batch.push(link::up(&end));
    batch.push(address::add(end.index, ip.into(), PREFIX, false));
    batch.push(everywhere.add());
    inside.batch(batch)?;
    let result = format!(
        concat!(
            r#"{{"cniVersion":"1.0.0","interfaces":[{{"name":"{}","sandbox":"{}"}}],"#,
            r#""ips":[{{"address":"{}/{}","gateway":"{}","interface":0}}],"#,
            r#""routes":[{{"dst":"0.0.0.0/0"}}],"dns":{{}}}}"#
        ),
        ifname,
        std::env::var("CNI_NETNS")?,
        ip,
        PREFIX,
        GATEWAY
    );
    Ok(std::io::stdout().write_all(result.as_bytes())?)
}

/// Waits until the kernel has deleted the link: this program has no child process that could wait instead.
fn del() -> Result<()> {
    let mut config = String::new();
    std::io::stdin().read_to_string(&mut config)?;
    let message = Message::new(libc::RTM_DELLINK, 0, "delete the host's end")
        .raw(&link::header(0, 0, 0))
        .string(a::IFNAME, &host_end(&std::env::var("CNI_CONTAINERID")?));
    Socket::route()?.request(message)?;
    // The config of DEL has the result of ADD, with the address.
    let leased = config.split(r#""address":""#).nth(1).and_then(|rest| rest.split('/').next());
    let _lock = locked()?;
    Ok(fs::remove_file(Path::new(LEASES).join(leased.ok_or("no address to release")?))?)
}

/// Leases the next free address after the last allocated one, in host-local's file layout.
fn lease(container: &str, ifname: &str) -> Result<Ipv4Addr> {
    let _lock = locked()?;
    let folder = Path::new(LEASES);
    let newest = folder.join("last_reserved_ip.0");
    let mut ip = fs::read_to_string(&newest).ok().and_then(|text| text.parse().ok()).unwrap_or(GATEWAY);
    loop {
        ip = if ip >= LAST { GATEWAY } else { ip };
        ip = Ipv4Addr::from(u32::from(ip) + 1);
        match File::create_new(folder.join(ip.to_string())) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
            other => other?.write_all(format!("{container}\r\n{ifname}").as_bytes())?,
        }
        // Overwritten instead of truncated: truncating makes the file system free the old block and allocate a new one.
        let file = File::options().write(true).create(true).truncate(false).open(newest)?;
        let text = ip.to_string();
        if file.metadata()?.len() > text.len() as u64 {
            file.set_len(text.len() as u64)?;
        }
        file.write_all_at(text.as_bytes(), 0)?;
        return Ok(ip);
    }
}

fn locked() -> Result<File> {
    let path = Path::new(LEASES).join("lock");
    let file = match File::options().read(true).write(true).create(true).truncate(false).open(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            fs::create_dir_all(LEASES)?;
            File::create(&path)?
        }
        other => other?,
    };
    file.lock()?;
    Ok(file)
}

fn create_bridge(host: &mut Socket) -> Result<u32> {
    let message = Message::new(libc::RTM_NEWLINK, podwire_netlink::rt::CREATE, "create the bridge")
        .raw(&link::header(0, link::UP, link::UP))
        .string(a::IFNAME, BRIDGE)
        // A fixed address: otherwise the bridge takes the lowest one of its ports, and the kernel searches for it
        // whenever a port is added or removed.
        .bytes(a::ADDRESS, &[2, 0, 0, 0, 0, 1])
        .nest(a::LINKINFO, |m| m.string(a::INFO_KIND, "bridge"));
    host.request(message)?;
    let bridge = link::by_name(host, BRIDGE)?.index;
    host.request(address::add(bridge, IpAddr::V4(GATEWAY), PREFIX, false))?;
    Ok(bridge)
}

/// Creates both ends in one message: the host's up and on the bridge, the pod's in the pod's namespace.
fn veth(host_end: &str, ifname: &str, bridge: u32, pod: &File) -> Message {
    let queues = |m: Message| m.u32(a::NUM_TX_QUEUES, 1).u32(a::NUM_RX_QUEUES, 1);
    let message = Message::new(libc::RTM_NEWLINK, podwire_netlink::rt::CREATE, "create the veth pair")
        .raw(&link::header(0, link::UP, link::UP))
        .string(a::IFNAME, host_end)
        .u32(a::MASTER, bridge);
    queues(message).nest(a::LINKINFO, |m| {
        m.string(a::INFO_KIND, "veth").nest(a::INFO_DATA, |m| {
            m.nest(a::VETH_INFO_PEER, |mut m| {
                m.push_raw(&link::header(0, 0, 0));
                queues(m.string(a::IFNAME, ifname).u32(a::NET_NS_FD, pod.as_raw_fd() as u32))
            })
        })
    })
}

/// The benchmark's container ids differ in their last digits.
fn host_end(container: &str) -> String {
    let tail = container.len().saturating_sub(11);
    format!("veth{}", &container[tail..])
}

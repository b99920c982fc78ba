//! `podwire demo`: pods get a network, on this machine, with nothing but its kernel; then a cluster does.
//!
//! A node, its pods and a bit of outside world live in namespaces of this process; so do the files. They vanish
//! when it ends, whichever way it ends. The cluster is a lab (`podwire lab`), which is ended before.

mod cluster;
mod place;
mod screen;
mod traffic;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{bail, Context, Result};
use podwire_cni_runtime::{Identity, Runtime};
use podwire_cni_spec::{Attachment, NetworkList};
use serde_json::json;

use place::Place;
use screen::Screen;

const NETWORK: &str = "demo";
const NODE_ADDRESS: &str = "192.0.2.1";
const WORLD_ADDRESS: &str = "192.0.2.2";
const HOST_PORT: u16 = 8080;
const LIMIT: u64 = 16_000_000;

/// One pod of the story.
struct Pod {
    name: &'static str,
    what: &'static str,
    place: Place,
    identity: Identity,
}

/// Runs the demo.
pub fn run() -> Result<()> {
    if podwire_netlink::sys::user_id() != 0 {
        bail!("it makes network namespaces and needs root: sudo podwire demo");
    }
    place::private_machine().context("make a private machine")?;
    let screen = Screen::new();
    let start = Instant::now();

    screen.title("A node, and the world outside");
    let node = Place::new("node")?;
    let world = Place::new("world")?;
    place::join(&node, NODE_ADDRESS, &world, WORLD_ADDRESS)?;
    screen.line(&format!("node {NODE_ADDRESS} ── {WORLD_ADDRESS} world: two namespaces and a cable"));

    let stage = Stage { runtime: runtime()?, list: network()?, node, screen };
    let pods = stage.attach_all()?;
    stage.show_table(&pods);
    stage.talk(&pods, &world)?;
    stage.check_all(&pods)?;
    stage.detach_all(&pods)?;
    cluster::show(&stage.screen)?;
    stage.screen.title(&format!(
        "Done in {:.1} s. The namespaces vanish with this program.",
        start.elapsed().as_secs_f32()
    ));
    Ok(())
}

/// The plugins of the folder beside this program, else those of the usual folders; ours are called in-process.
fn runtime() -> Result<Runtime<'static>> {
    let beside = std::env::current_exe()?.with_file_name("cni");
    let folders: Vec<PathBuf> = match beside.is_dir() {
        true => vec![beside],
        false => vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()],
    };
    let registry = podwire_plugins::registry();
    Ok(Runtime::new(folders).cache_folder("/run/podwire/demo").registry(registry))
}

/// The network: a bridge, addresses of both families, ports, limits, a firewall.
fn network() -> Result<NetworkList> {
    let config = json!({
        "cniVersion": "1.1.0", "name": NETWORK,
        "plugins": [
            {"type": "bridge", "bridge": "pods0", "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
             "ipam": {"type": "host-local", "dataDir": "/run/podwire/demo/networks",
                      "ranges": [[{"subnet": "10.42.0.0/24"}], [{"subnet": "fd00:42::/64"}]]}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "bandwidth", "capabilities": {"bandwidth": true}},
            {"type": "firewall"},
            {"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}},
        ],
    });
    Ok(NetworkList::parse(config.to_string().as_bytes())?)
}

struct Stage {
    runtime: Runtime<'static>,
    list: NetworkList,
    node: Place,
    screen: Screen,
}

impl Stage {
    fn attach_all(&self) -> Result<Vec<(Pod, Attachment)>> {
        let types: Vec<_> = self.list.plugins.iter().map(|plugin| plugin.kind.as_str()).collect();
        self.screen.title(&format!("Three pods join the network \"{NETWORK}\": {}", types.join(" → ")));
        let ports = json!([{"hostPort": HOST_PORT, "containerPort": 80, "protocol": "tcp"}]);
        let limit = json!({"ingressRate": LIMIT, "ingressBurst": 256_000, "egressRate": LIMIT, "egressBurst": 256_000});
        let wanted = [
            ("web", "port 8080 of the node", Some(("portMappings", ports))),
            ("client", "", None),
            ("slow", "16 Mbit/s at most", Some(("bandwidth", limit))),
        ];
        let mut pods = Vec::new();
        for (name, what, capability) in wanted {
            let place = Place::new(name)?;
            let mut identity = Identity::new(name, "eth0")?.netns(place.path());
            if let Some((key, value)) = capability {
                identity = identity.capability(key, value);
            }
            let start = Instant::now();
            let result = self.node.run(|| self.runtime.add(&self.list, &identity))?;
            let result = result.with_context(|| format!("attach {name}"))?;
            self.screen
                .done(&format!("ADD {name}"), &format!("{:.2} ms", start.elapsed().as_secs_f64() * 1e3));
            pods.push((Pod { name, what, place, identity }, result));
        }
        Ok(pods)
    }

    fn show_table(&self, pods: &[(Pod, Attachment)]) {
        let mut rows = Vec::new();
        for (pod, result) in pods {
            let address = |v4: bool| {
                let mut all = result.ips.iter().map(|ip| ip.address).filter(|net| net.addr().is_ipv4() == v4);
                all.next().map(|net| net.to_string()).unwrap_or_default()
            };
            let inside = result.interfaces.iter().find(|one| !one.sandbox.is_empty());
            let mac = inside.map(|one| one.mac.clone()).unwrap_or_default();
            rows.push(vec![pod.name.into(), address(true), address(false), mac, pod.what.into()]);
        }
        self.screen.title("Who got which address");
        self.screen.table(&["POD", "IPV4", "IPV6", "HARDWARE ADDRESS", "SPECIAL"], &rows);
    }

    fn talk(&self, pods: &[(Pod, Attachment)], world: &Place) -> Result<()> {
        let [(web, at_web), (client, _), (slow, at_slow)] = pods else { bail!("three pods were wanted") };
        self.screen.title("They talk");
        for ip in &at_web.ips {
            let address = ip.address.addr();
            let time =
                client.place.run(|| traffic::ping(address))?.with_context(|| format!("ping {address}"))?;
            self.screen.done(&format!("client pings web at {address}"), &format!("{:.3} ms", time * 1e3));
        }
        let outside = WORLD_ADDRESS.parse()?;
        client.place.run(|| traffic::ping(outside))?.context("ping the world")?;
        self.screen.done(
            "client pings the world",
            &format!("which sees the node's address, {NODE_ADDRESS} (ipMasq)"),
        );

        let _server = web.place.run(|| traffic::serve(80, "hello from web"))??;
        for (who, place, address) in
            [("the world", world, NODE_ADDRESS), ("the node itself", &self.node, "127.0.0.1")]
        {
            let answer =
                place.run(|| traffic::get(address, HOST_PORT))?.with_context(|| format!("HTTP by {who}"))?;
            self.screen.done(&format!("{who} asks http://{address}:{HOST_PORT}/"), &format!("{answer:?}"));
        }
        let to = at_slow.ips.first().context("slow has no address")?.address.addr();
        let sink = slow.place.run(|| traffic::sink(9))??;
        let rate = client.place.run(|| traffic::measure(to, 9, sink))??;
        self.screen.done(
            "client sends to slow",
            &format!("{:.1} Mbit/s (the limit is {})", rate / 1e6, LIMIT / 1_000_000),
        );
        Ok(())
    }

    fn check_all(&self, pods: &[(Pod, Attachment)]) -> Result<()> {
        for (pod, _) in pods {
            let checked = self.node.run(|| self.runtime.check(&self.list, &pod.identity))?;
            checked.with_context(|| format!("check {}", pod.name))?;
        }
        self.screen.done("CHECK of all pods", "everything is as ADD left it");
        Ok(())
    }

    fn detach_all(&self, pods: &[(Pod, Attachment)]) -> Result<()> {
        self.screen.title("They leave");
        for (pod, _) in pods {
            let start = Instant::now();
            let left = self.node.run(|| self.runtime.del(&self.list, &pod.identity))?;
            left.with_context(|| format!("detach {}", pod.name))?;
            self.screen.done(
                &format!("DEL {}", pod.name),
                &format!("{:.2} ms", start.elapsed().as_secs_f64() * 1e3),
            );
        }
        self.node.run(|| self.runtime.gc(&self.list, &[]).done())??;
        let left = self.node.run(|| place::leftovers(Path::new("/run/podwire/demo")))??;
        self.screen.title("What is left on the node");
        left.iter().for_each(|(what, found)| self.screen.line(&format!("{what:<22}{found}")));
        if let Some((what, found)) = left.iter().find(|(what, found)| place::is_leak(what, found)) {
            bail!("something was left behind: {what} {found}");
        }
        Ok(())
    }
}

//! `podwire demo`: attaches three pods to a network on this machine, then starts a two-node cluster.
//!
//! The node, its pods and an outside host are network namespaces, and their files are in a private mount namespace. Both
//! vanish with this process, however it ends. The cluster is a lab (`podwire lab`), which the demo removes at its end.

mod cluster;
mod namespace;
mod screen;
mod traffic;

use std::path::Path;
use std::time::Instant;

use anyhow::{bail, Context, Result};
use podwire_cni_runtime::{Identity, Runtime};
use podwire_cni_spec::{Attachment, NetworkList};
use podwire_ip::IpFamily;
use serde_json::json;

use crate::plugin_dirs;
use namespace::Namespace;
use screen::Screen;

const NETWORK: &str = "demo";
const NODE_ADDRESS: &str = "192.0.2.1";
const OUTSIDE_ADDRESS: &str = "192.0.2.2";
const HOST_PORT: u16 = 8080;
const LIMIT: u64 = 16_000_000;

/// A pod of the demo.
struct Pod {
    name: &'static str,
    what: &'static str,
    namespace: Namespace,
    identity: Identity,
}

/// Runs the demo.
pub fn run() -> Result<()> {
    namespace::private_mounts().context("create private mounts")?;
    let screen = Screen::new();
    let start = Instant::now();

    screen.title("A node and an outside host");
    let node = Namespace::new("node")?;
    let outside = Namespace::new("outside")?;
    namespace::connect(&node, NODE_ADDRESS, &outside, OUTSIDE_ADDRESS)?;
    screen.line(&format!("node {NODE_ADDRESS} ── {OUTSIDE_ADDRESS} outside: two namespaces and a veth pair"));

    let demo = Demo { runtime: runtime(), list: network()?, node, screen };
    let pods = demo.attach_all()?;
    demo.show_table(&pods);
    demo.send_traffic(&pods, &outside)?;
    demo.check_all(&pods)?;
    demo.detach_all(&pods)?;
    cluster::run(&demo.screen)?;
    demo.screen.title(&format!(
        "Done in {:.1} s. The namespaces vanish with this program.",
        start.elapsed().as_secs_f32()
    ));
    Ok(())
}

/// A runtime for the demo. Podwire's plugins run in-process.
fn runtime() -> Runtime<'static> {
    let runtime = Runtime::new(plugin_dirs::default()).cache_folder("/run/podwire/demo");
    runtime.registry(podwire_plugins::registry())
}

/// The network: a bridge, addresses of both families, host ports, bandwidth limits and a firewall.
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

struct Demo {
    runtime: Runtime<'static>,
    list: NetworkList,
    node: Namespace,
    screen: Screen,
}

impl Demo {
    fn attach_all(&self) -> Result<Vec<(Pod, Attachment)>> {
        let types: Vec<_> = self.list.plugins.iter().map(|plugin| plugin.kind.as_str()).collect();
        self.screen.title(&format!("ADD: three pods join the network \"{NETWORK}\": {}", types.join(" → ")));
        let ports = json!([{"hostPort": HOST_PORT, "containerPort": 80, "protocol": "tcp"}]);
        let limit = json!({"ingressRate": LIMIT, "ingressBurst": 256_000, "egressRate": LIMIT, "egressBurst": 256_000});
        let wanted = [
            ("web", "host port 8080", Some(("portMappings", ports))),
            ("client", "", None),
            ("slow", "limited to 16 Mbit/s", Some(("bandwidth", limit))),
        ];
        let mut pods = Vec::new();
        for (name, what, capability) in wanted {
            let namespace = Namespace::new(name)?;
            let mut identity = Identity::new(name, "eth0")?.netns(namespace.path());
            if let Some((key, value)) = capability {
                identity = identity.capability(key, value);
            }
            let start = Instant::now();
            let result = self.node.run(|| self.runtime.add(&self.list, &identity))?;
            let result = result.with_context(|| format!("attach {name}"))?;
            self.screen
                .done(&format!("ADD {name}"), &format!("{:.2} ms", start.elapsed().as_secs_f64() * 1e3));
            pods.push((Pod { name, what, namespace, identity }, result));
        }
        Ok(pods)
    }

    fn show_table(&self, pods: &[(Pod, Attachment)]) {
        let mut rows = Vec::new();
        for (pod, result) in pods {
            let address = |family: IpFamily| {
                let mut all = result.ips.iter().map(|ip| ip.address);
                all.find(|net| IpFamily::of_net(*net) == family)
                    .map(|net| net.to_string())
                    .unwrap_or_default()
            };
            let inside = result.interfaces.iter().find(|one| !one.sandbox.is_empty());
            let mac = inside.map(|one| one.mac.clone()).unwrap_or_default();
            rows.push(vec![
                pod.name.into(),
                address(IpFamily::V4),
                address(IpFamily::V6),
                mac,
                pod.what.into(),
            ]);
        }
        self.screen.title("Addresses");
        self.screen.table(&["POD", "IPV4", "IPV6", "MAC", "NOTE"], &rows);
    }

    fn send_traffic(&self, pods: &[(Pod, Attachment)], outside: &Namespace) -> Result<()> {
        let [(web, at_web), (client, _), (slow, at_slow)] = pods else { bail!("expected three pods") };
        self.screen.title("Traffic");
        for ip in &at_web.ips {
            let address = ip.address.addr();
            let time = client
                .namespace
                .run(|| traffic::ping(address))?
                .with_context(|| format!("ping {address}"))?;
            self.screen.done(&format!("client pings web at {address}"), &format!("{:.3} ms", time * 1e3));
        }
        let address = OUTSIDE_ADDRESS.parse()?;
        client.namespace.run(|| traffic::ping(address))?.context("ping the outside host")?;
        self.screen.done(
            "client pings the outside host",
            &format!("which sees the address of the node, {NODE_ADDRESS} (ipMasq)"),
        );

        let _server = web.namespace.run(|| traffic::serve(80, "hello from web"))??;
        for (sender, namespace, address) in
            [("the outside host", outside, NODE_ADDRESS), ("the node", &self.node, "127.0.0.1")]
        {
            let answer = namespace
                .run(|| traffic::get(address, HOST_PORT))?
                .with_context(|| format!("HTTP from {sender}"))?;
            self.screen.done(&format!("{sender} gets http://{address}:{HOST_PORT}/"), &format!("{answer:?}"));
        }
        let to = at_slow.ips.first().context("slow has no address")?.address.addr();
        let sink = slow.namespace.run(|| traffic::sink(9))??;
        let rate = client.namespace.run(|| traffic::measure(to, 9, sink))??;
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
        self.screen.done("CHECK of all pods", "no differences to the result of ADD");
        Ok(())
    }

    fn detach_all(&self, pods: &[(Pod, Attachment)]) -> Result<()> {
        self.screen.title("DEL: the pods leave the network");
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
        let left = self.node.run(|| namespace::leftovers(Path::new("/run/podwire/demo")))??;
        self.screen.title("Leftovers on the node");
        left.iter().for_each(|(what, found)| self.screen.line(&format!("{what:<22}{found}")));
        if let Some((what, found)) = left.iter().find(|(what, found)| namespace::is_leak(what, found)) {
            bail!("DEL left something behind: {what} {found}");
        }
        Ok(())
    }
}

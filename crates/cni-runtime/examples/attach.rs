//! A container runtime in thirty lines: attaches a namespace to a network, shows what it got, detaches it.
//!
//! ```sh
//! ip netns add blue
//! cargo run --example attach -- pods /run/netns/blue      # as root
//! ip netns del blue
//! ```

use std::time::Duration;

use podwire_cni_runtime::{ConfigFolder, Error, Identity, Runtime};
use serde_json::json;

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let (Some(network), Some(netns)) = (args.next(), args.next()) else {
        eprintln!("usage: attach NETWORK NETNS");
        return Ok(());
    };

    // The networks that an administrator wrote; a bad file among them hides no other.
    let network = ConfigFolder::new("/etc/cni/net.d").find(&network)?;

    // A runtime keeps one of these for its lifetime.
    let runtime = Runtime::new(["/opt/cni/bin", "/usr/lib/cni"]).timeout(Duration::from_secs(60));

    // At startup: what was left by containers that died while the runtime was down. A real runtime says here
    // which of its containers are alive.
    let alive = [];
    for record in runtime.gc(&network.list, &alive).done()? {
        println!("swept up {} {}", record.container, record.ifname);
    }

    let container = Identity::new("example", "eth0")?
        .netns(netns)
        .capability("portMappings", json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]));
    let attachment = runtime.add(&network.list, &container)?;
    for ip in &attachment.ips {
        println!("attached with {}", ip.address);
    }
    // Networks that are older than CHECK have nothing to say.
    if network.list.version.has_check() {
        runtime.check(&network.list, &container)?;
        println!("all is as it should be");
    }
    runtime.del(&network.list, &container)?;
    println!("detached");
    Ok(())
}

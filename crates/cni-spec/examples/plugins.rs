//! Prints the plugins of a config list: `cargo run --example plugins < /etc/cni/net.d/10-pods.conflist`

use std::io::{self, Read};

use podwire_cni_spec::NetworkList;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes)?;
    let list = NetworkList::parse(&bytes)?;
    println!("{} (CNI {})", list.name, list.version);
    for plugin in &list.plugins {
        match &plugin.ipam {
            Some(ipam) => println!("  {} with addresses from {ipam}", plugin.kind),
            None => println!("  {}", plugin.kind),
        }
    }
    Ok(())
}

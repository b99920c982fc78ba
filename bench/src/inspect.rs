//! Checks of a node and its pods: a measurement is valid only if the plugins did their work.

use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};
use podwire_kernel::rt::neighbour::{Neighbour, Table};
use podwire_kernel::{rt, Host, Link, Netns};
use serde_json::Value;

use crate::chain::{address, namespace, IFNAME};
use crate::protocol::Counts;

/// Checks an attached pod from inside: the interface is up and has its address, and the gateway answers.
pub fn check_attached(pod: u32, result: &Value) -> Result<()> {
    let (address, gateway) = address(result).context("a result without an address")?;
    let ip: IpAddr =
        address.split('/').next().unwrap_or_default().parse().context("the address in the result")?;
    let mut inside = Host::within(Netns::open(namespace(pod))?)?;
    let link = inside.find_link(IFNAME)?.with_context(|| format!("no {IFNAME} after ADD"))?;
    ensure!(link.is_up(), "{IFNAME} is not up after ADD");
    let addresses = rt::address::list(&mut inside.route, link.index)?;
    ensure!(addresses.iter().any(|a| a.ip == ip), "{IFNAME} does not have {ip} after ADD");
    if let Some(gateway) = gateway {
        add_gateway_neighbour(&mut inside, &link, &gateway)?;
        let ping =
            || Command::new("ping").args(["-c1", "-w10", "-q", &gateway]).stdout(Stdio::null()).status();
        ensure!(inside.run(ping)??.success(), "the gateway {gateway} does not answer");
    }
    Ok(())
}

/// Adds a neighbour entry for a gateway that is a bridge. Without it the pod would send an ARP request, which a bridge
/// floods to all its ports. With more than a thousand ports the copies and the reply exceed the kernel's queue
/// (net.core.netdev_max_backlog).
fn add_gateway_neighbour(inside: &mut Host, link: &Link, gateway: &str) -> Result<()> {
    let gateway: IpAddr = gateway.parse().context("the gateway in the result")?;
    let mut node = Host::here()?;
    for one in rt::link::list(&mut node.route)?.into_iter().filter(|one| one.kind == "bridge") {
        let has_gateway =
            rt::address::list(&mut node.route, one.index)?.iter().any(|address| address.ip == gateway);
        if let Some(mac) = one.mac.first_chunk().filter(|_| has_gateway) {
            let neighbour = Neighbour::permanent(link.index, gateway, *mac).replace(Table::Addresses);
            inside.route.request(neighbour)?;
            return Ok(());
        }
    }
    Ok(())
}

/// Checks that a detached pod's interface is gone.
pub fn check_detached(pod: u32) -> Result<()> {
    let mut inside = Host::within(Netns::open(namespace(pod))?)?;
    ensure!(inside.find_link(IFNAME)?.is_none(), "{IFNAME} is still there after DEL");
    Ok(())
}

/// Counts the node's links, nftables objects and files.
pub fn count() -> Result<Counts> {
    let links = rt::link::list(&mut Host::here()?.route)?.len();
    let nft = Command::new("nft").args(["-j", "list", "ruleset"]).stderr(Stdio::inherit()).output()?;
    ensure!(nft.status.success(), "nft list ruleset: {}", nft.status);
    let ruleset: Value = serde_json::from_slice(&nft.stdout).context("nft's JSON")?;
    let objects = ruleset["nftables"].as_array().map_or(0, Vec::len);
    let mut files = files(Path::new("/var/lib/cni"))? + files(Path::new("/run"))?;
    // The benchmark's own files: namespaces and configs.
    for own in ["/run/netns", "/run/podwire-bench"] {
        files -= self::files(Path::new(own))?;
    }
    Ok(Counts { links, firewall: objects + elements(&ruleset), files })
}

/// How many elements the sets and maps of a ruleset have.
fn elements(value: &Value) -> usize {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| match (key.as_str(), value) {
                ("elem", Value::Array(all)) => all.len(),
                _ => elements(value),
            })
            .sum(),
        Value::Array(all) => all.iter().map(elements).sum(),
        _ => 0,
    }
}

fn files(folder: &Path) -> Result<usize> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        other => other?,
    };
    let mut count = 0;
    for entry in entries {
        let entry = entry?;
        count += if entry.file_type()?.is_dir() { files(&entry.path())? } else { 1 };
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_counted_at_every_depth() {
        let ruleset = serde_json::json!({"nftables": [
            {"set": {"name": "pods", "elem": ["10.0.0.1", "10.0.0.2"]}},
            {"map": {"name": "ports", "elem": [[1, 2]]}},
            {"rule": {"expr": [{"match": {}}]}}
        ]});
        assert_eq!(elements(&ruleset), 3);
    }
}

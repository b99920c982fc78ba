//! Breaking something.

use std::fs;
use std::os::fd::AsFd;
use std::time::Duration;

use podwire_ip::IpFamily;
use podwire_kernel::rt::neighbour::{self, Neighbour, Table};
use podwire_kernel::rt::{link, route};
use podwire_kernel::{Host, Link};
use podwire_netlink::nft::{self, Transaction};
use podwire_netlink::{sys, Batch};
use podwire_sandbox::Process;

use crate::{wires, Broken, Error, Fault, Lab, Result, Store};

/// It sorts before every other.
pub(crate) const FOREIGN: &str = "/etc/cni/net.d/00-foreign.conflist";
const FOREIGN_LIST: &str =
    r#"{"cniVersion": "1.0.0", "name": "foreign", "plugins": [{"type": "bridge", "bridge": "foreign0"}]}"#;
/// Nobody's.
const WRONG: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SIGKILL: i32 = 9;
const PATIENCE: Duration = Duration::from_secs(10);

impl Lab {
    /// Breaks something on a node. What does not heal by itself is written down, for [`Lab::heal`].
    pub fn harm(&mut self, fault: Fault, node: &str) -> Result<()> {
        if self.state.is_broken(fault, node) {
            let what = format!("{fault} was done to {node} already");
            return Err(Error::input(what, "podwire lab heal takes it back"));
        }
        if let Some(why) = self.state.plan.lacks(fault) {
            return Err(Error::input(why, "make a lab with --cni-network flannel"));
        }
        // It must be there to be broken, and may be broken before.
        self.process(node)?;
        match fault {
            Fault::KillAgent => self.kill_agent(node)?,
            Fault::DeleteDevice => delete_devices(&mut self.host(node)?)?,
            Fault::FlushRoutes => flush_routes(&mut self.host(node)?)?,
            Fault::FlushRules => flush_rules(&mut self.host(node)?)?,
            Fault::PoisonNeighbours => poison(&mut self.host(node)?)?,
            Fault::LinkDown => wires::take_down(&mut self.host(node)?)?,
            Fault::RebootNode => self.reboot(node)?,
            Fault::RemoveNode => self.take_away(node)?,
            Fault::StopStore => self.stop_store()?,
            Fault::DuplicateRange => self.plant(&self.ranges(node)?)?,
            Fault::ForeignConfig => {
                let path = self.file(node, FOREIGN)?;
                fs::write(&path, FOREIGN_LIST).map_err(Error::file("write", FOREIGN))?;
            }
            // Its addresses follow from its being written down.
            Fault::ChangeAddress => {}
        }
        if fault.remedy().is_some() {
            self.state.broken.push(Broken { fault, node: node.into() });
            self.save()?;
        }
        match fault {
            Fault::ChangeAddress => self.dress(node),
            _ => Ok(()),
        }
    }

    fn kill_agent(&mut self, node: &str) -> Result<()> {
        match self.state.agents.get(node) {
            Some(agent) => kill(*agent, "the agent")?,
            None => return Err(Error::input(format!("{node} has no agent"), "")),
        }
        self.state.agents.remove(node);
        Ok(())
    }

    fn stop_store(&mut self) -> Result<()> {
        match (self.state.plan.store, self.state.etcd.take()) {
            (Store::Etcd, Some(etcd)) => kill(etcd, "etcd"),
            (Store::Etcd, None) => Err(Error::input("etcd does not run", "podwire lab heal starts it")),
            (store, _) => Err(Error::input(
                format!("the store {store} is a file: there is nothing to stop"),
                "make a lab with --store etcd",
            )),
        }
    }

    fn reboot(&mut self, node: &str) -> Result<()> {
        self.end(node)?;
        if self.state.plan.is_routed() {
            // Its files are gone, and with them who had which address.
            self.release(node)?;
        }
        self.bring_back(node)
    }

    fn take_away(&mut self, node: &str) -> Result<()> {
        self.end(node)?;
        self.unplug(node)?;
        self.forget(node)
    }

    /// The ranges of a node, as its agent knows them.
    pub(crate) fn ranges(&self, node: &str) -> Result<Vec<String>> {
        let word = self.word(node);
        word.map(|word| word.ranges).ok_or_else(|| Error::Inside {
            machine: node.into(),
            doing: "ask the agent for its range".into(),
            said: "no answer".into(),
        })
    }
}

fn kill(process: Process, what: &'static str) -> Result<()> {
    let failed = || Error::file("kill", what);
    let Some(open) = process.open().map_err(failed())? else { return Ok(()) };
    sys::signal_process(open.as_fd(), SIGKILL).map_err(failed())?;
    sys::readable(&[open.as_fd()], PATIENCE).map(drop).map_err(failed())
}

/// The devices of tunnels have flannel's names, or those of roads to blocks.
fn devices(host: &mut Host) -> Result<Vec<Link>> {
    let all = link::list(&mut host.route)?;
    let is_tunnel = |link: &Link| {
        link.name.starts_with("flannel")
            || podwire_overlay::BlockBackend::devices().contains(&link.name.as_str())
    };
    let found: Vec<Link> = all.into_iter().filter(is_tunnel).collect();
    match found.is_empty() {
        true => Err(Error::input("this backend has no device", "make a lab with --backend vxlan")),
        false => Ok(found),
    }
}

fn delete_devices(host: &mut Host) -> Result<()> {
    let mut batch = Batch::new();
    devices(host)?.iter().for_each(|device| batch.push(link::delete(device)));
    Ok(host.route.batch(batch)?)
}

fn flush_routes(host: &mut Host) -> Result<()> {
    let ours =
        route::list(&mut host.route)?.into_iter().filter(|route| route.protocol == podwire_overlay::PROTOCOL);
    let mut batch = Batch::new();
    ours.for_each(|route| batch.push(route.delete()));
    Ok(host.route.batch(batch)?)
}

fn flush_rules(host: &mut Host) -> Result<()> {
    let nft = host.nft()?;
    let mut all = Transaction::new();
    nft::list_tables(nft, None)?.iter().for_each(|table| all.delete_table(table));
    Ok(all.commit(nft)?)
}

fn poison(host: &mut Host) -> Result<()> {
    let mut batch = Batch::new();
    for device in devices(host)? {
        for family in IpFamily::ALL {
            let known = neighbour::list(&mut host.route, device.index, family)?;
            for one in known.iter().filter(|one| one.permanent) {
                batch.push(Neighbour { mac: Some(WRONG), ..*one }.replace(Table::Addresses));
            }
        }
        for entry in neighbour::forwarding(&mut host.route, device.index)? {
            batch.push(entry.delete(Table::Forwarding));
        }
    }
    // The agent mends what was done first while the rest is being done: then there is less to delete.
    host.route.batch_each(batch)?;
    Ok(())
}

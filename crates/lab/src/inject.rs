//! Injecting faults.

use std::fs;
use std::os::fd::AsFd;
use std::time::Duration;

use podwire_fs::FileError;
use podwire_ip::IpFamily;
use podwire_kernel::rt::neighbour::{self, Neighbour, Table};
use podwire_kernel::rt::{link, route};
use podwire_kernel::{Host, Link};
use podwire_netlink::nft::{self, Transaction};
use podwire_netlink::{sys, Batch};
use podwire_sandbox::Process;

use crate::{links, ActiveFault, Error, Fault, Lab, Result, Store};

/// A conflist whose name sorts first, so that runtimes use it.
pub(crate) const FOREIGN_CONFLIST: &str = "/etc/cni/net.d/00-foreign.conflist";
const FOREIGN_CONTENT: &str =
    r#"{"cniVersion": "1.0.0", "name": "foreign", "plugins": [{"type": "bridge", "bridge": "foreign0"}]}"#;
/// A MAC address that no device has.
const WRONG_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SIGKILL: i32 = 9;
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

impl Lab {
    /// Injects a fault on a node. A fault that the agents cannot repair is recorded for [`Lab::heal`].
    pub fn inject(&mut self, fault: Fault, node: &str) -> Result<()> {
        if self.state.has_fault(fault, node) {
            let what = format!("{node} already has the fault {fault}");
            return Err(Error::input(what, "remove it with `podwire lab heal`"));
        }
        if let Some(why) = self.state.spec.unsupported(fault) {
            return Err(Error::input(why, "start a lab with --cni-network flannel"));
        }
        // The node must run.
        self.process(node)?;
        match fault {
            Fault::KillAgent => self.kill_agent(node)?,
            Fault::DeleteDevice => delete_devices(&mut self.host(node)?)?,
            Fault::FlushRoutes => flush_routes(&mut self.host(node)?)?,
            Fault::FlushRules => flush_rules(&mut self.host(node)?)?,
            Fault::PoisonNeighbours => poison_neighbours(&mut self.host(node)?)?,
            Fault::LinkDown => links::set_uplink_down(&mut self.host(node)?)?,
            Fault::RebootNode => self.reboot(node)?,
            Fault::RemoveNode => self.remove_node(node)?,
            Fault::StopStore => self.stop_store()?,
            Fault::DuplicateRange => self.add_intruder(&self.pod_cidrs(node)?)?,
            Fault::ForeignConfig => {
                let path = self.file(node, FOREIGN_CONFLIST)?;
                fs::write(&path, FOREIGN_CONTENT).map_err(FileError::at("write", FOREIGN_CONFLIST))?;
            }
            // The recorded fault decides the addresses, see below.
            Fault::ChangeAddress => {}
        }
        if fault.remedy().is_some() {
            self.state.faults.push(ActiveFault { fault, node: node.into() });
            self.save()?;
        }
        match fault {
            Fault::ChangeAddress => self.configure_uplink(node),
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
        match (self.state.spec.store, self.state.etcd.take()) {
            (Store::Etcd, Some(etcd)) => kill(etcd, "etcd"),
            (Store::Etcd, None) => Err(Error::input("etcd does not run", "start it with `podwire lab heal`")),
            (store, _) => Err(Error::input(
                format!("the store {store} is a file and has no process to stop"),
                "start a lab with --store etcd",
            )),
        }
    }

    fn reboot(&mut self, node: &str) -> Result<()> {
        self.end(node)?;
        if self.state.spec.is_calico() {
            // The reboot removed the lease files, so the addresses of the node must be released.
            self.release(node)?;
        }
        self.start_node(node)
    }

    fn remove_node(&mut self, node: &str) -> Result<()> {
        self.end(node)?;
        self.disconnect(node)?;
        self.remove_from_store(node)
    }

    /// The pod CIDRs of a node, from the status of its agent.
    pub(crate) fn pod_cidrs(&self, node: &str) -> Result<Vec<String>> {
        let status = self.agent_status(node);
        status.map(|status| status.pod_cidrs).ok_or_else(|| Error::Exec {
            machine: node.into(),
            doing: "get the pod CIDRs from the agent".into(),
            output: "no answer".into(),
        })
    }
}

fn kill(process: Process, what: &'static str) -> Result<()> {
    let failed = || FileError::at("kill", what);
    let Some(open) = process.open().map_err(failed())? else { return Ok(()) };
    sys::signal_process(open.as_fd(), SIGKILL).map_err(failed())?;
    sys::readable(&[open.as_fd()], KILL_TIMEOUT).map_err(failed())?;
    Ok(())
}

/// The tunnel devices: flannel's, or those of block routes.
fn tunnel_devices(host: &mut Host) -> Result<Vec<Link>> {
    let all = link::list(&mut host.route)?;
    let is_tunnel = |link: &Link| {
        link.name.starts_with("flannel")
            || podwire_overlay::BlockBackend::devices().contains(&link.name.as_str())
    };
    let found: Vec<Link> = all.into_iter().filter(is_tunnel).collect();
    if found.is_empty() {
        return Err(Error::input("this backend has no device", "start a lab with --backend vxlan"));
    }
    Ok(found)
}

fn delete_devices(host: &mut Host) -> Result<()> {
    let mut batch = Batch::new();
    tunnel_devices(host)?.iter().for_each(|device| batch.push(link::delete(device)));
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

fn poison_neighbours(host: &mut Host) -> Result<()> {
    let mut batch = Batch::new();
    for device in tunnel_devices(host)? {
        for family in IpFamily::ALL {
            let known = neighbour::list(&mut host.route, device.index, family)?;
            for one in known.iter().filter(|one| one.permanent) {
                batch.push(Neighbour { mac: Some(WRONG_MAC), ..*one }.replace(Table::Addresses));
            }
        }
        for entry in neighbour::forwarding(&mut host.route, device.index)? {
            batch.push(entry.delete(Table::Forwarding));
        }
    }
    // The agent repairs the first entries while the later ones are changed, so some requests fail.
    host.route.batch_each(batch)?;
    Ok(())
}

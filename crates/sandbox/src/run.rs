//! Running a pod, and taking back what was done if it cannot be.

use std::path::Path;

use ipnet::IpNet;
use podwire_cni_runtime::Catalogue;
use podwire_cni_spec::NetworkList;

use crate::checkpoint::{Checkpoint, Plan, Stage};
use crate::home::Home;
use crate::pause::{Newborn, Order};
use crate::{attach, resolv, status, sysctl, Error, Pods, Process, Result, Spec, State};

/// A pod that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// Its container id.
    pub id: String,
    /// The process that holds its namespaces.
    pub process: Process,
    /// The addresses that its networks gave to it.
    pub addresses: Vec<IpNet>,
    /// What was asked for and could not be done in full.
    pub warnings: Vec<String>,
}

const RESOLV: &str = "resolv.conf";
const HOSTNAME: &str = "hostname";

impl Pods<'_> {
    /// Runs a pod. If that fails, everything is taken back; what cannot be is still known, and [`Pods::remove`] goes on
    /// with it. If whoever ran a pod of this name died before it was ready, what that left is removed first.
    pub fn run(&self, spec: &Spec, networks: &Catalogue<'_>) -> Result<Started> {
        spec.check()?;
        let (plans, lists): (Vec<Plan>, Vec<NetworkList>) = attach::plan(spec, networks)?.into_iter().unzip();
        let home = Home::ensure(&self.folder, &spec.name)?;
        if let Some(mut earlier) = home.checkpoint()? {
            match status::judge(Some(&earlier), false) {
                State::Unfinished => self.take_apart(&home, &mut earlier)?,
                state => return Err(Error::Exists { name: spec.name.clone(), state }),
            }
        }
        let drawn = Checkpoint::new(spec, plans);
        let mut pod =
            drawn.map_err(|error| Error::Pause { name: spec.name.clone(), why: error.to_string() })?;
        let error = match self.bring_up(&home, &mut pod, &lists) {
            Ok(started) => return Ok(started),
            Err(error) => error,
        };
        match self.take_apart(&home, &mut pod).and_then(|()| home.remove()) {
            Ok(()) => Err(error),
            Err(undo) => Err(Error::Undo { source: Box::new(error), undo: Box::new(undo) }),
        }
    }

    fn bring_up(&self, home: &Home, pod: &mut Checkpoint, lists: &[NetworkList]) -> Result<Started> {
        let spec = pod.spec.clone();
        // A node without such a file has no names to resolve.
        let node = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        let first = resolv::compose(&spec.dns, &[], &node);
        home.write(RESOLV, &first.text)?;
        if !spec.host_network {
            home.write(HOSTNAME, &format!("{}\n", spec.hostname()))?;
        }
        let mut newborn = Newborn::start(&spec.name, !spec.host_network)?;
        let process = newborn.process;
        pod.process = Some(process);
        newborn.tell(&orders(&spec, home)?)?;
        // The process lives from here on, and only because this is written down.
        home.save(pod)?;
        newborn.live()?;
        let made = attach::attach(&self.runtime, pod, lists)?;
        let addresses = made.iter().flat_map(|one| &one.ips).map(|ip| ip.address).collect();
        let told: Vec<_> = made.into_iter().map(|one| one.dns).collect();
        let resolv = resolv::compose(&spec.dns, &told, &node);
        if resolv.text != first.text {
            home.write(RESOLV, &resolv.text)?;
        }
        pod.stage = Stage::Ready;
        home.save(pod)?;
        Ok(Started { id: pod.id.clone(), process, addresses, warnings: resolv.warnings })
    }
}

/// What the pod's process does before anybody else is there.
fn orders(spec: &Spec, home: &Home) -> Result<Vec<String>> {
    let own_network = !spec.host_network;
    let (resolv, hostname) = (home.file(RESOLV), home.file(HOSTNAME));
    let mut orders = vec![
        Order::Cover { file: Path::new("/etc/resolv.conf"), with: &resolv }.line(),
        Order::ShowItself { own_network }.line(),
    ];
    if own_network {
        orders.push(Order::Cover { file: Path::new("/etc/hostname"), with: &hostname }.line());
        orders.push(Order::HostName(spec.hostname()).line());
        orders.push(Order::Loopback.line());
    }
    for (key, value) in &spec.sysctls {
        orders.push(Order::Knob { path: &sysctl::path(key, spec.host_network)?, value }.line());
    }
    Ok(orders)
}

//! Starts a pod, and cleans up if that fails.

use std::path::Path;

use ipnet::IpNet;
use podwire_cni_runtime::Catalogue;
use podwire_cni_spec::NetworkList;

use crate::checkpoint::{Checkpoint, PlannedAttachment, Stage};
use crate::pause::{PauseProcess, SetupStep};
use crate::pod_dir::PodDir;
use crate::{attach, resolv, status, sysctl, Error, Pods, Process, Result, Spec, State};

/// A started pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// Its container id.
    pub id: String,
    /// The process that holds its namespaces.
    pub process: Process,
    /// Its addresses.
    pub addresses: Vec<IpNet>,
    /// Requests that were carried out only in part.
    pub warnings: Vec<String>,
}

const RESOLV: &str = "resolv.conf";
const HOSTNAME: &str = "hostname";

impl Pods<'_> {
    /// Starts a pod. If that fails, everything is cleaned up; if the cleanup fails, the checkpoint stays and [`Pods::remove`]
    /// continues. Leftovers of an earlier start that died are removed first.
    pub fn run(&self, spec: &Spec, networks: &Catalogue<'_>) -> Result<Started> {
        spec.check()?;
        let (plans, lists): (Vec<PlannedAttachment>, Vec<NetworkList>) =
            attach::plan(spec, networks)?.into_iter().unzip();
        let dir = PodDir::ensure(&self.dir, &spec.name)?;
        if let Some(mut earlier) = dir.checkpoint()? {
            match status::find_state(Some(&earlier), false) {
                State::Unfinished => self.tear_down(&dir, &mut earlier)?,
                state => return Err(Error::Exists { name: spec.name.clone(), state }),
            }
        }
        let created = Checkpoint::new(spec, plans);
        let mut pod =
            created.map_err(|error| Error::Pause { name: spec.name.clone(), reason: error.to_string() })?;
        let error = match self.start(&dir, &mut pod, &lists) {
            Ok(started) => return Ok(started),
            Err(error) => error,
        };
        match self.tear_down(&dir, &mut pod).and_then(|()| dir.remove()) {
            Ok(()) => Err(error),
            Err(undo) => Err(Error::Undo { source: Box::new(error), undo: Box::new(undo) }),
        }
    }

    fn start(&self, dir: &PodDir, pod: &mut Checkpoint, lists: &[NetworkList]) -> Result<Started> {
        let spec = pod.spec.clone();
        // A node without this file has no DNS servers.
        let node = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        let first = resolv::compose(&spec.dns, &[], &node);
        dir.write(RESOLV, &first.text)?;
        if !spec.host_network {
            dir.write(HOSTNAME, &format!("{}\n", spec.hostname()))?;
        }
        let mut pause = PauseProcess::start(&spec.name, !spec.host_network)?;
        let process = pause.process;
        pod.process = Some(process);
        pause.configure(&setup(&spec, dir)?)?;
        // The process outlives this one from here on, because the checkpoint names it.
        dir.save(pod)?;
        pause.release()?;
        let made = attach::attach(&self.runtime, pod, lists)?;
        let addresses = made.iter().flat_map(|one| &one.ips).map(|ip| ip.address).collect();
        let returned: Vec<_> = made.into_iter().map(|one| one.dns).collect();
        let resolv = resolv::compose(&spec.dns, &returned, &node);
        if resolv.text != first.text {
            dir.write(RESOLV, &resolv.text)?;
        }
        pod.stage = Stage::Ready;
        dir.save(pod)?;
        Ok(Started { id: pod.id.clone(), process, addresses, warnings: resolv.warnings })
    }
}

/// The setup that the pause process does in its namespaces.
fn setup(spec: &Spec, dir: &PodDir) -> Result<Vec<String>> {
    let own_network = !spec.host_network;
    let (resolv, hostname) = (dir.file(RESOLV), dir.file(HOSTNAME));
    let mut steps = vec![
        SetupStep::BindMount { target: Path::new("/etc/resolv.conf"), source: &resolv }.encode(),
        SetupStep::MountProcAndSys { own_network }.encode(),
    ];
    if own_network {
        steps.push(SetupStep::BindMount { target: Path::new("/etc/hostname"), source: &hostname }.encode());
        steps.push(SetupStep::HostName(spec.hostname()).encode());
        steps.push(SetupStep::Loopback.encode());
    }
    for (key, value) in &spec.sysctls {
        steps.push(SetupStep::Sysctl { path: &sysctl::path(key, spec.host_network)?, value }.encode());
    }
    Ok(steps)
}

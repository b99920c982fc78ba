//! The status of pods. Addresses come from the kernel, not from files.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use podwire_ip::IpFamily;
use podwire_kernel::rt::{address, link};
use podwire_kernel::{Host, Netns};
use podwire_netlink::sys;
use std::os::fd::AsFd;

use crate::checkpoint::{Checkpoint, Stage};
use crate::pod_dir::{self, PodDir};
use crate::{Error, PodName, Pods, Process, Result, Spec, State};

/// The status of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// Its name.
    pub name: PodName,
    /// Its state.
    pub state: State,
    /// Its container id. This and all that follows is missing if the pod has no checkpoint.
    pub id: Option<String>,
    /// Its spec.
    pub spec: Option<Spec>,
    /// When it was created, in seconds since 1970.
    pub created: Option<u64>,
    /// The process that holds its namespaces, if it is alive.
    pub process: Option<Process>,
    /// Its networks, in the order of their attachment: network and interface name.
    pub networks: Vec<(String, String)>,
    /// Its interfaces without the loopback, from the kernel. Empty for a pod on the host network.
    pub interfaces: Vec<Interface>,
}

/// An interface in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Whether it is up.
    pub up: bool,
    /// Its global addresses.
    pub addresses: Vec<IpNet>,
}

impl Status {
    /// The pod's addresses: the first of each family on its first network.
    pub fn ips(&self) -> Vec<IpAddr> {
        let first = self.networks.first().map(|(_, ifname)| ifname);
        let all =
            self.interfaces.iter().filter(|one| Some(&one.name) == first).flat_map(|one| &one.addresses);
        let of_family = |family| all.clone().map(IpNet::addr).find(|ip| IpFamily::of(*ip) == family);
        IpFamily::ALL.into_iter().filter_map(of_family).collect()
    }

    /// The file of its network namespace.
    pub fn netns(&self) -> Option<PathBuf> {
        self.process.map(|process| process.netns())
    }
}

/// The state of a pod, from its checkpoint and whether another process works on it.
pub(crate) fn find_state(pod: Option<&Checkpoint>, busy: bool) -> State {
    let stage = pod.map_or(Stage::Starting, |pod| pod.stage);
    let alive = || pod.and_then(|pod| pod.process).is_some_and(|process| process.is_alive());
    match (stage, busy) {
        (Stage::Starting, true) => State::Starting,
        (Stage::Stopping, true) => State::Stopping,
        (Stage::Starting | Stage::Stopping, false) => State::Unfinished,
        (Stage::Ready, _) if alive() => State::Ready,
        (Stage::Ready, _) => State::Lost,
        (Stage::Stopped, _) => State::Stopped,
    }
}

impl Pods<'_> {
    /// The status of a pod; `None` if it does not exist.
    pub fn status(&self, name: &PodName) -> Result<Option<Status>> {
        self.read_status(&self.dir.join(name.key()), name)
    }

    /// Every pod, sorted by namespace and name, and the pods that cannot be read.
    pub fn list(&self) -> (Vec<Status>, Vec<Error>) {
        let (mut pods, mut errors) = (Vec::new(), Vec::new());
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten().map(|entry| entry.path());
        for path in entries {
            let key = path.file_name().unwrap_or_default().to_string_lossy();
            let Some(name) = PodName::of_key(&key) else { continue };
            match self.read_status(&path, &name) {
                Ok(pod) => pods.extend(pod),
                Err(error) => errors.push(error),
            }
        }
        pods.sort_by(|one, other| one.name.cmp(&other.name));
        (pods, errors)
    }

    /// The names of all pods.
    pub fn names(&self) -> Vec<PodName> {
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.filter_map(|entry| PodName::of_key(&entry.file_name().to_string_lossy())).collect();
        names.sort();
        names
    }

    fn read_status(&self, path: &Path, name: &PodName) -> Result<Option<Status>> {
        // In this order: a process that begins in between is seen as busy.
        let pod = pod_dir::read(path)?;
        if pod.is_none() && !path.exists() {
            return Ok(None);
        }
        let state = find_state(pod.as_ref(), PodDir::is_busy(path));
        let mut status = Status {
            name: name.clone(),
            state,
            id: None,
            spec: None,
            created: None,
            process: None,
            networks: Vec::new(),
            interfaces: Vec::new(),
        };
        if let Some(pod) = pod {
            status.process = pod.process.filter(|process| process.is_alive());
            status.networks = pod.attachments.into_iter().map(|one| (one.network, one.ifname)).collect();
            let own_network = status.process.filter(|_| !pod.spec.host_network);
            // A pod that ends meanwhile has none.
            status.interfaces = own_network.and_then(|process| interfaces(process).ok()).unwrap_or_default();
            (status.id, status.created, status.spec) = (Some(pod.id), Some(pod.created), Some(pod.spec));
        }
        Ok(Some(status))
    }

    /// Moves this process, which must be single-threaded, into a pod. Programs that it starts afterwards run there and end with
    /// the pod.
    pub fn enter(&self, name: &PodName) -> Result<()> {
        let path = self.dir.join(name.key());
        let pod = pod_dir::read(&path)?;
        let state = find_state(pod.as_ref(), PodDir::is_busy(&path));
        let not_running = || {
            if path.exists() {
                Error::NotRunning { name: name.clone(), state }
            } else {
                Error::Unknown(name.clone())
            }
        };
        let process =
            pod.and_then(|pod| pod.process).filter(|_| state == State::Ready).ok_or_else(not_running)?;
        let enter = || -> std::io::Result<bool> {
            let opened = process.open()?;
            opened
                .map(|process| sys::enter_namespaces_of(process.as_fd()))
                .transpose()
                .map(|done| done.is_some())
        };
        match enter() {
            Ok(true) => Ok(()),
            Ok(false) => Err(not_running()),
            Err(error) => {
                Err(Error::Pause { name: name.clone(), reason: format!("enter its namespaces: {error}") })
            }
        }
    }
}

fn interfaces(process: Process) -> Result<Vec<Interface>> {
    let mut host = Host::within(Netns::open(process.netns())?)?;
    let failed = |error: podwire_netlink::Error| Error::from(podwire_kernel::Error::from(error));
    let links = link::list(&mut host.route).map_err(failed)?;
    let addresses = address::list(&mut host.route, 0).map_err(failed)?;
    const GLOBAL: u8 = 0; // RT_SCOPE_UNIVERSE in linux/rtnetlink.h
    let of = |index: u32| {
        let own = addresses.iter().filter(|one| one.link == index && one.scope == GLOBAL);
        own.filter_map(|one| IpNet::new(one.ip, one.prefix).ok()).collect()
    };
    let others = links.iter().filter(|link| link.name != "lo");
    Ok(others
        .map(|link| Interface { name: link.name.clone(), up: link.is_up(), addresses: of(link.index) })
        .collect())
}

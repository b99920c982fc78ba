//! What a pod does, and which addresses it has: asked of the kernel, since files may be wrong.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use podwire_kernel::rt::{address, link};
use podwire_kernel::{Host, Netns};
use podwire_netlink::sys;
use std::os::fd::AsFd;

use crate::checkpoint::{Checkpoint, Stage};
use crate::home::{self, Home};
use crate::{Error, PodName, Pods, Process, Result, Spec};

/// What a pod does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Somebody is about to run it.
    Starting,
    /// It runs.
    Ready,
    /// It ran, and its process is gone: killed, or out of memory.
    Lost,
    /// Somebody stops it.
    Stopping,
    /// Whoever ran or stopped it died before all was done.
    Unfinished,
    /// Nothing of it is left but what is known of it.
    Stopped,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            State::Starting => "starting",
            State::Ready => "ready",
            State::Lost => "lost",
            State::Stopping => "stopping",
            State::Unfinished => "unfinished",
            State::Stopped => "stopped",
        })
    }
}

/// A pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// Its name.
    pub name: PodName,
    /// What it does.
    pub state: State,
    /// Its container id; none if nothing is known of it but its name, as of all that follows.
    pub id: Option<String>,
    /// What was asked for.
    pub spec: Option<Spec>,
    /// When it was run, in seconds since 1970.
    pub created: Option<u64>,
    /// The process that holds its namespaces, if it is alive.
    pub process: Option<Process>,
    /// Its networks and their interfaces in it, in the order of their attachment.
    pub networks: Vec<(String, String)>,
    /// Its interfaces, but for the loopback, as the kernel shows them. A pod on the host's network has none of its own.
    pub interfaces: Vec<Interface>,
}

/// An interface in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Whether it is up.
    pub up: bool,
    /// Addresses that others can reach it by.
    pub addresses: Vec<IpNet>,
}

impl Status {
    /// The pod's addresses: of its first network, the first of each family.
    pub fn ips(&self) -> Vec<IpAddr> {
        let first = self.networks.first().map(|(_, ifname)| ifname);
        let all =
            self.interfaces.iter().filter(|one| Some(&one.name) == first).flat_map(|one| &one.addresses);
        let of_family = |v4: bool| all.clone().map(IpNet::addr).find(|ip| ip.is_ipv4() == v4);
        [of_family(true), of_family(false)].into_iter().flatten().collect()
    }

    /// The file of its network namespace.
    pub fn netns(&self) -> Option<PathBuf> {
        self.process.map(|process| process.netns())
    }
}

/// What a pod does, by what is known of it and whether somebody works on it.
pub(crate) fn judge(pod: Option<&Checkpoint>, busy: bool) -> State {
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
    /// What a pod does; none if there is none.
    pub fn status(&self, name: &PodName) -> Result<Option<Status>> {
        self.look(&self.folder.join(name.key()), name)
    }

    /// Every pod, by namespace and name, and what cannot be understood.
    pub fn list(&self) -> (Vec<Status>, Vec<Error>) {
        let (mut pods, mut errors) = (Vec::new(), Vec::new());
        let entries =
            std::fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        for path in entries {
            let key = path.file_name().unwrap_or_default().to_string_lossy();
            let Some(name) = PodName::of_key(&key) else { continue };
            match self.look(&path, &name) {
                Ok(pod) => pods.extend(pod),
                Err(error) => errors.push(error),
            }
        }
        pods.sort_by(|one, other| one.name.cmp(&other.name));
        (pods, errors)
    }

    /// The names of all pods, whatever is known of them.
    pub fn names(&self) -> Vec<PodName> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.filter_map(|entry| PodName::of_key(&entry.file_name().to_string_lossy())).collect();
        names.sort();
        names
    }

    fn look(&self, path: &Path, name: &PodName) -> Result<Option<Status>> {
        // In this order: who begins in between is seen as busy.
        let pod = home::read(path)?;
        if pod.is_none() && !path.exists() {
            return Ok(None);
        }
        let state = judge(pod.as_ref(), Home::is_busy(path));
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
            status.networks = pod.attachments.into_iter().map(|plan| (plan.network, plan.ifname)).collect();
            let own_network = status.process.filter(|_| !pod.spec.host_network);
            // Who vanishes while being looked at has none.
            status.interfaces = own_network.and_then(|process| interfaces(process).ok()).unwrap_or_default();
            (status.id, status.created, status.spec) = (Some(pod.id), Some(pod.created), Some(pod.spec));
        }
        Ok(Some(status))
    }

    /// Moves this process, which must have one thread only, into a pod. Programs that it starts from now on run there, and
    /// end with the pod.
    pub fn enter(&self, name: &PodName) -> Result<()> {
        let path = self.folder.join(name.key());
        let pod = home::read(&path)?;
        let state = judge(pod.as_ref(), Home::is_busy(&path));
        let not_running = || match path.exists() {
            true => Error::NotRunning { name: name.clone(), state },
            false => Error::Unknown(name.clone()),
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
                Err(Error::Pause { name: name.clone(), why: format!("enter its namespaces: {error}") })
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

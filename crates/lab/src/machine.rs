//! A machine of the lab: one process in namespaces of its own, and all that runs in them.

use std::path::{Path, PathBuf};

use podwire_kernel::{Host, Netns};
use podwire_sandbox::pause::{PauseProcess, SetupStep};
use podwire_sandbox::{PodName, Process};

use crate::{Error, Lab, Result};

/// Where a machine sees what all machines of its lab see.
pub(crate) const SHARED: &str = "/var/lib/podwire/lab";

impl Lab {
    /// Starts a machine. Its process lives only once it is written down.
    pub(crate) fn boot(&mut self, name: &str) -> Result<()> {
        let called = PodName::new(&self.state.plan.namespace(), name);
        let called = called.map_err(|error| Error::input(error.msg, error.details))?;
        let mut newborn = PauseProcess::start(&called, true).map_err(Error::machine(name))?;
        newborn.configure(&orders(name, &self.home.shared())).map_err(Error::machine(name))?;
        self.state.machines.insert(name.into(), newborn.process);
        self.save()?;
        newborn.release().map_err(Error::machine(name))
    }

    /// Ends a machine, and all that runs on it.
    pub(crate) fn end(&mut self, name: &str) -> Result<()> {
        if let Some(process) = self.state.machines.remove(name) {
            let ended = process.end().map_err(Error::file("end the process of", name))?;
            if !ended {
                self.state.machines.insert(name.into(), process);
                let why = std::io::Error::other("it waits for a device or a disk in the kernel: try again");
                return Err(Error::file("end the process of", name)(why));
            }
        }
        self.state.agents.remove(name);
        self.save()
    }

    /// The process that holds a machine that lives.
    pub(crate) fn process(&self, name: &str) -> Result<Process> {
        let process = self.state.machines.get(name).filter(|process| process.is_alive());
        process.copied().ok_or_else(|| Error::NoMachine {
            lab: self.state.plan.name.clone(),
            name: name.into(),
            machines: self.state.machines.keys().cloned().collect(),
        })
    }

    pub(crate) fn netns(&self, name: &str) -> Result<Netns> {
        Ok(Netns::open(self.process(name)?.netns())?)
    }

    pub(crate) fn host(&self, name: &str) -> Result<Host> {
        Ok(Host::within(self.netns(name)?)?)
    }

    /// A file of a machine, as it is seen from here.
    pub(crate) fn file(&self, name: &str, path: &str) -> Result<PathBuf> {
        let root = PathBuf::from(format!("/proc/{}/root", self.process(name)?.pid));
        Ok(root.join(path.trim_start_matches('/')))
    }
}

/// What makes namespaces a machine: files of its own where programs of a node leave something, and its name. The folder that
/// all machines share is bound before `/run`, where it is, is covered.
fn orders(name: &str, shared: &Path) -> Vec<String> {
    let path = Path::new;
    let orders = [
        SetupStep::MountProcAndSys { own_network: true },
        SetupStep::Tmpfs(path("/var/lib")),
        SetupStep::CreateDir(path("/var/lib/cni")),
        SetupStep::CreateDir(path(SHARED)),
        SetupStep::BindMount { target: path(SHARED), source: shared },
        SetupStep::Mirror { dir: path("/etc"), except: "cni" },
        SetupStep::CreateDir(path("/etc/cni/net.d")),
        SetupStep::Tmpfs(path("/run")),
        SetupStep::CreateDir(path("/run/netns")),
        SetupStep::HostName(name),
        SetupStep::Loopback,
        // Nobody else can have the lab's addresses: they need not be asked for, which takes a second.
        SetupStep::Sysctl { path: "net/ipv6/conf/all/accept_dad", value: "0" },
        SetupStep::Sysctl { path: "net/ipv6/conf/default/accept_dad", value: "0" },
    ];
    orders.iter().map(SetupStep::encode).collect()
}

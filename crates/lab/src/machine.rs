//! A machine of the lab, a node or the router: one process in its own namespaces, and everything that runs in them.

use std::path::{Path, PathBuf};

use podwire_fs::FileError;
use podwire_kernel::{Host, Netns};
use podwire_sandbox::pause::{PauseProcess, SetupStep};
use podwire_sandbox::{PodName, Process};

use crate::{Error, Lab, Result};

/// The path of the lab's shared directory on every machine.
pub(crate) const SHARED: &str = "/var/lib/podwire/lab";

impl Lab {
    /// Starts a machine. Its process continues only after it is recorded in the state, so that no process is lost.
    pub(crate) fn boot(&mut self, name: &str) -> Result<()> {
        let pod = PodName::new(&self.state.spec.namespace(), name);
        let pod = pod.map_err(|error| Error::input(error.msg, error.details))?;
        let mut starting = PauseProcess::start(&pod, true).map_err(Error::machine(name))?;
        starting.configure(&setup_steps(name, &self.directory.shared())).map_err(Error::machine(name))?;
        self.state.machines.insert(name.into(), starting.process);
        self.save()?;
        starting.release().map_err(Error::machine(name))
    }

    /// Ends a machine and everything that runs on it.
    pub(crate) fn end(&mut self, name: &str) -> Result<()> {
        if let Some(process) = self.state.machines.remove(name) {
            let ended = process.end().map_err(FileError::at("end the process of", name))?;
            if !ended {
                self.state.machines.insert(name.into(), process);
                let why = std::io::Error::other("it waits for a device or a disk in the kernel: try again");
                return Err(FileError::at("end the process of", name)(why).into());
            }
        }
        self.state.agents.remove(name);
        self.save()
    }

    /// The process that holds a running machine.
    pub(crate) fn process(&self, name: &str) -> Result<Process> {
        let process = self.state.machines.get(name).filter(|process| process.is_alive());
        process.copied().ok_or_else(|| Error::NoMachine {
            lab: self.state.spec.name.clone(),
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

    /// The path from here to a file on a machine.
    pub(crate) fn file(&self, name: &str, path: &str) -> Result<PathBuf> {
        let root = PathBuf::from(format!("/proc/{}/root", self.process(name)?.pid));
        Ok(root.join(path.trim_start_matches('/')))
    }
}

/// The steps that turn namespaces into a machine: its own files where programs of a node write, and its host name. The
/// shared directory is bind-mounted before `/run`, which contains it, is covered.
fn setup_steps(name: &str, shared: &Path) -> Vec<String> {
    let path = Path::new;
    let steps = [
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
        // No other host can have the lab's addresses. Without duplicate address detection, which takes a second, they are
        // usable at once.
        SetupStep::Sysctl { path: "net/ipv6/conf/all/accept_dad", value: "0" },
        SetupStep::Sysctl { path: "net/ipv6/conf/default/accept_dad", value: "0" },
    ];
    steps.iter().map(SetupStep::encode).collect()
}

//! Pod sandboxes: namespaces, the process that holds them, networks and `resolv.conf`. This is what kubelet's network plugin
//! manager and a container runtime's `RunPodSandbox` do, without images or containers.
//!
//! [`Pods::run`] follows kubelet's order: start the pod's process in new namespaces ([`pause`]); write a checkpoint; set up the
//! loopback; attach the default network and the others; mark the checkpoint as ready. [`Pods::stop`] goes backwards: networks
//! last to first, then the process. [`Pods::status`] reads the pod's addresses from the kernel, not from a file.
//!
//! Three invariants hold if a process dies in between:
//!
//! - **The pause process runs only once it is recorded.** It waits for a message that is sent after the checkpoint is written.
//!   If the sender dies before, the pause process ends too. So no process is without a pod.
//! - **The checkpoint names everything before it is created**: networks, interfaces, ports and the whole config. Teardown
//!   needs nothing else: the process, its namespaces, the config directory and the plugins' files may all be gone.
//! - **A pod is its directory**, `/run/podwire/pods/<name>_<namespace>`, and the directory is the pod's lock. Operations on one
//!   pod are serialized across processes; operations on different pods are independent.

#![forbid(unsafe_code)]

mod attach;
pub mod bandwidth;
mod checkpoint;
mod error;
mod name;
pub mod pause;
mod pod_dir;
mod process;
mod resolv;
mod run;
mod spec;
mod state;
mod status;
mod stop;
pub mod sysctl;

use std::path::PathBuf;

use podwire_cni_runtime::Runtime;

pub use bandwidth::Bandwidth;
pub use error::{Error, Result};
pub use name::PodName;
pub use process::Process;
pub use run::Started;
pub use spec::{NetworkRequest, Spec};
pub use state::State;
pub use status::{Interface, Status};
pub use stop::Stopped;

/// The directory of the pods; like them, it does not survive a boot.
pub const DIR: &str = "/run/podwire/pods";

/// The pods of this node.
///
/// ```no_run
/// use podwire_cni_runtime::{Catalogue, ConfigFolder, Runtime};
/// use podwire_sandbox::{PodName, Pods, Spec};
///
/// let runtime = Runtime::new(["/opt/cni/bin"]);
/// let networks = Catalogue::read(ConfigFolder::new("/etc/cni/net.d"), runtime.clone());
/// let pods = Pods::new(runtime);
/// let name = PodName::new("default", "web")?;
/// pods.run(&Spec::new(name.clone()), &networks)?;
/// for pod in pods.status(&name)? {
///     println!("{:?}", pod.ips());
/// }
/// pods.remove(&name, false)?;
/// # Ok::<(), podwire_sandbox::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pods<'p> {
    dir: PathBuf,
    runtime: Runtime<'p>,
}

impl<'p> Pods<'p> {
    /// The pods in `/run/podwire/pods`; `runtime` attaches their networks.
    pub fn new(runtime: Runtime<'p>) -> Pods<'p> {
        Pods { dir: DIR.into(), runtime }
    }

    /// The pods in another directory, which must not survive a boot.
    pub fn dir(self, dir: impl Into<PathBuf>) -> Self {
        Pods { dir: dir.into(), ..self }
    }
}

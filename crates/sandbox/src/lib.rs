//! What a pod lives in: namespaces, the process that holds them, its networks and its `resolv.conf`. It is what kubelet's
//! network plugin manager and a container runtime's `RunPodSandbox` do, and no more: nothing here knows of images or
//! containers.
//!
//! [`Pods::run`] goes in kubelet's order. The pod's process is started in new namespaces ([`pause`]); a checkpoint is
//! written; the loopback comes up; the default network and further ones are attached, each by its plugins; the checkpoint
//! says that the pod is ready. [`Pods::stop`] goes backwards: networks last to first, then the process.
//! [`Pods::status`] asks the kernel, not a file, for the pod's addresses.
//!
//! Three rules make it hold when something dies half way.
//!
//! - **The process lives only once it is written down.** It waits for a word, which is given after the checkpoint is
//!   there. Whoever dies before that takes it along, since the word can never come. So no process is without a pod.
//! - **The checkpoint names everything before it is made**: networks, interfaces, ports and the whole configuration.
//!   Teardown needs nothing else: the process, its namespaces, the config folder and the plugins' files may all be gone.
//! - **A pod is its folder**, `/run/podwire/pods/<name>_<namespace>`, and the folder is the pod's lock. Operations on one
//!   pod come one after the other, from whichever process; those on different pods do not know of each other.

#![forbid(unsafe_code)]

mod attach;
pub mod bandwidth;
mod checkpoint;
mod error;
mod home;
mod name;
pub mod pause;
mod process;
mod resolv;
mod run;
mod spec;
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
pub use spec::{Spec, Wanted};
pub use status::{Interface, State, Status};
pub use stop::Stopped;

/// Where pods are noted down: it goes with the boot, as they do.
pub const FOLDER: &str = "/run/podwire/pods";

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
    folder: PathBuf,
    runtime: Runtime<'p>,
}

impl<'p> Pods<'p> {
    /// The pods in `/run/podwire/pods`, whose networks are attached by `runtime`.
    pub fn new(runtime: Runtime<'p>) -> Pods<'p> {
        Pods { folder: FOLDER.into(), runtime }
    }

    /// Those in another folder. It must not outlive the boot.
    pub fn folder(self, folder: impl Into<PathBuf>) -> Self {
        Pods { folder: folder.into(), ..self }
    }
}

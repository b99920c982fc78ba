//! A cluster: a control plane and its nodes.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use podwire_tests::podwire;

use crate::control_plane::ControlPlane;
use crate::machine::Disk;
use crate::{image, Kube, Machine};

/// The timeout of all waiting.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The component that assigns pod CIDRs to nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranges {
    /// Kubernetes' own: the node IPAM of kube-controller-manager.
    KubeControllerManager,
    /// Podwire's controller, from the manifest.
    Podwire,
}

impl Ranges {
    /// The choice of `PODWIRE_TEST_RANGES`: `podwire` or `kube-controller-manager`. The default is Podwire's
    /// controller, if this build has it.
    pub fn chosen() -> Ranges {
        match std::env::var("PODWIRE_TEST_RANGES").as_deref() {
            Ok("podwire") => Ranges::Podwire,
            Ok("kube-controller-manager") => Ranges::KubeControllerManager,
            Ok(other) => panic!("PODWIRE_TEST_RANGES={other}: podwire or kube-controller-manager"),
            Err(_) => {
                let asked = Command::new(podwire()).args(["controller", "--help"]).output().expect("podwire");
                if asked.status.success() {
                    Ranges::Podwire
                } else {
                    Ranges::KubeControllerManager
                }
            }
        }
    }
}

/// A cluster, first without nodes.
pub struct Cluster {
    /// A client with administrator's rights.
    pub api: Kube,
    control: ControlPlane,
    image: String,
}

impl Cluster {
    /// Starts a control plane, and waits until it works.
    pub fn new(ranges: Ranges) -> Cluster {
        let image = image();
        let mut control = ControlPlane::start();
        let netns = format!("/proc/{}/ns/net", control.stage.pid());
        let api = Kube::new(Path::new(&netns), &control.kubeconfig("admin"));
        wait_for("the API server", || api.is_up().then_some(()));
        control.go_on(ranges);
        let cluster = Cluster { api, control, image };
        // Before this, pods are not admitted.
        let account = serde_json::json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "default"}});
        cluster.wait("the controllers", || cluster.api.find(&account));
        cluster
    }

    /// Adds a machine. `number` is the last part of its address.
    pub fn boot(&self, name: &str, number: u8) -> Machine {
        Machine::boot(&self.control, (name, number), &self.image, Disk::new(name))
    }

    /// Cuts a machine's power and boots it again with the same disk.
    pub fn reboot(&self, machine: Machine) -> Machine {
        let (name, address) = (machine.name.clone(), machine.address.clone());
        let number = address.rsplit('.').next().and_then(|part| part.parse().ok()).expect("a number");
        Machine::boot(&self.control, (&name, number), &self.image, machine.unplug())
    }

    /// The control plane's host, which is outside of the cluster's pod network.
    pub fn outside(&self) -> &podwire_runtime_tests::Stage {
        &self.control.stage
    }

    /// Runs helm as an administrator, in the namespace `kube-system`: `install podwire CHART`.
    #[track_caller]
    pub fn helm(&self, words: &[&str]) -> String {
        self.control.helm(&words.join(" "))
    }

    /// Stops the API server for this time while `work` runs. Returns when the server answers again.
    pub fn without_api(&mut self, time: Duration, work: impl FnOnce() + Send) {
        self.control.kill_server();
        std::thread::scope(|scope| {
            scope.spawn(work);
            std::thread::sleep(time);
        });
        self.control.start_server();
        self.wait("the API server is back", || self.api.is_up().then_some(()));
    }

    /// Polls until there is a result, and returns it.
    #[track_caller]
    pub fn wait<T>(&self, what: &str, answer: impl FnMut() -> Option<T>) -> T {
        wait_for(what, answer)
    }
}

#[track_caller]
fn wait_for<T>(what: &str, mut answer: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = answer() {
            println!("{what}: after {:.1} s", begun.elapsed().as_secs_f32());
            return found;
        }
        assert!(begun.elapsed() < TIMEOUT, "{what}: not within {} s", TIMEOUT.as_secs());
        std::thread::sleep(Duration::from_millis(200));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", last_lines(&self.control.stage));
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}: {}", self.name, last_lines(self.stage()));
        }
    }
}

/// The last lines of the logs on a stage, to explain a failure.
fn last_lines(stage: &podwire_runtime_tests::Stage) -> String {
    let script = "cd /var/log && for log in *.log pods/*/*/*.log; do [ -e $log ] && echo \"== $log\" && tail -n 25 $log; done";
    String::from_utf8_lossy(&stage.try_sh(script).stdout).into_owned()
}

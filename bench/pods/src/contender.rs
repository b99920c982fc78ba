//! The programs that run pods.

use std::path::Path;

use anyhow::{anyhow, ensure, Context, Result};
use podwire_runtime_tests::{network, Containerd, Cri, Plugins, PodSpec, Stage, NETWORK};
use podwire_tests::{podwire, GO};
use serde_json::Value;

/// The contender that the others are compared with.
const GO_PLUGINS: &str = "containerd, Go plugins";
/// The same containerd with Podwire's plugins.
pub const OURS: &str = "containerd, our plugins";
/// `podwire pod`.
pub const PODWIRE: &str = "podwire";

/// A running pod.
pub struct Pod {
    /// The identifier with which it is removed.
    pub id: String,
    /// Its first address.
    pub address: String,
}

/// A program that runs pods, on a stage of its own.
pub trait Contender {
    /// Its name in the table.
    fn name(&self) -> &'static str;
    /// The stage on which it runs.
    fn stage(&self) -> &Stage;
    /// Starts a pod with a host port.
    fn run(&mut self, name: &str, port: u16) -> Result<Pod>;
    /// Removes a pod.
    fn remove(&mut self, id: &str) -> Result<()>;
}

/// All contenders, first the one that the others are compared with; or the reason why nothing can be compared.
pub fn contenders() -> Result<Vec<Box<dyn Contender>>, String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let has = |program: &str| path.split(':').any(|folder| Path::new(folder).join(program).exists());
    if let Some(missing) = ["containerd", "runc", "busybox"].into_iter().find(|program| !has(program)) {
        return Err(format!("{missing} is not installed"));
    }
    if !Path::new(GO).join("bridge").exists() {
        return Err(format!("no Go plugins in {GO}"));
    }
    let podwire = Podwire::start().ok_or("podwire pod list fails")?;
    Ok(vec![
        Box::new(ByContainerd::start(GO_PLUGINS, Plugins::Go)),
        Box::new(ByContainerd::start(OURS, Plugins::Ours)),
        Box::new(podwire),
    ])
}

struct ByContainerd {
    name: &'static str,
    containerd: Containerd,
    cri: Cri,
}

impl ByContainerd {
    fn start(name: &'static str, plugins: Plugins) -> ByContainerd {
        let containerd = Containerd::start(Stage::new(plugins));
        let cri = containerd.cri();
        ByContainerd { name, containerd, cri }
    }
}

impl Contender for ByContainerd {
    fn name(&self) -> &'static str {
        self.name
    }

    fn stage(&self) -> &Stage {
        &self.containerd
    }

    fn run(&mut self, name: &str, port: u16) -> Result<Pod> {
        let pod = self.cri.try_run(&PodSpec::named(name).port(port, 80)).map_err(|why| anyhow!(why))?;
        let address = pod.addresses.first().context("a pod without an address")?.clone();
        Ok(Pod { id: pod.id, address })
    }

    fn remove(&mut self, id: &str) -> Result<()> {
        self.cri.remove(id);
        Ok(())
    }
}

struct Podwire {
    stage: Stage,
    program: String,
}

impl Podwire {
    /// Returns None if `podwire pod list` fails.
    fn start() -> Option<Podwire> {
        let stage = Stage::new(Plugins::Ours);
        stage.write(NETWORK, &network());
        let podwire = Podwire { stage, program: podwire() };
        podwire.pod(&["list"]).is_ok().then_some(podwire)
    }

    fn pod(&self, arguments: &[&str]) -> Result<Value> {
        let all: Vec<&str> =
            [&*self.program, "pod"].into_iter().chain(arguments.iter().copied()).chain(["--json"]).collect();
        let output = self.stage.output(&all, &[]);
        ensure!(output.status == 0, "{arguments:?}: {}{}", output.stdout, output.stderr);
        serde_json::from_str(&output.stdout).context(output.stdout)
    }
}

impl Contender for Podwire {
    fn name(&self) -> &'static str {
        PODWIRE
    }

    fn stage(&self) -> &Stage {
        &self.stage
    }

    fn run(&mut self, name: &str, port: u16) -> Result<Pod> {
        let ran = self.pod(&["run", name, "--port", &format!("{port}:80")])?;
        let address =
            ran["pods"][0]["addresses"][0].as_str().with_context(|| format!("no address: {ran}"))?;
        let address = address.split('/').next().unwrap_or(address).to_owned();
        Ok(Pod { id: name.to_owned(), address })
    }

    fn remove(&mut self, id: &str) -> Result<()> {
        self.pod(&["rm", id]).map(drop)
    }
}

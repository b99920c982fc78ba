//! The second half of the demo: a two-node cluster with agents and pods, and the rules of the network model tested with packets.

use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use podwire_lab::{CleanupProcess, Families, Lab, LabSpec, Store};
use podwire_verify::Rule;

use super::screen::Screen;
use crate::plugin_dirs;

/// Generous, for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn run(screen: &Screen) -> Result<()> {
    let name = format!("demo-{}", std::process::id());
    // Removes the lab also if the demo is interrupted.
    let _cleanup = CleanupProcess::start(&name)?;
    let spec = LabSpec {
        name: name.clone(),
        nodes: 2,
        pods: 2,
        backend: "vxlan".into(),
        store: Store::Embedded,
        subnets: 1,
        families: Families::Dual,
        cni_network: "flannel".into(),
        policies: None,
        services: None,
        plugin_dirs: plugin_dirs::default(),
    };
    screen.title(&format!("A cluster: {spec}"));
    let mut report = |what: &str, took: Duration| screen.done(what, &format!("{:.2} s", took.as_secs_f64()));
    let lab = Lab::up(spec, &mut report)?;
    let verified = verify(&lab, screen);
    let start = Instant::now();
    lab.down().context("remove the cluster")?;
    verified?;
    if Lab::names().contains(&name) {
        bail!("the lab left something behind");
    }
    let took = format!("{:.2} s, nothing left", start.elapsed().as_secs_f64());
    screen.done("the cluster is removed", &took);
    Ok(())
}

fn verify(lab: &Lab, screen: &Screen) -> Result<()> {
    let status = lab.status();
    let mut rows = Vec::new();
    for node in &status.nodes {
        for pod in &node.pods {
            let ips = pod.ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            rows.push(vec![pod.name.clone(), node.name.clone(), ips]);
        }
    }
    screen.table(&["POD", "NODE", "ADDRESSES"], &rows);
    screen
        .title("The three rules of the Kubernetes network model, tested by TCP, UDP, ICMP and large packets");
    let report = lab.verify(TIMEOUT, &|_| {})?;
    if let Some(missing) = report.missing.first() {
        bail!("{missing}");
    }
    for Rule { text, count } in report.rules() {
        let (good, all) = (count.passed, count.sent);
        if good < all || all == 0 {
            let first = report.failures().next().map(|failure| report.sentence(failure));
            bail!("{text}: {good} of {all}; {}", first.unwrap_or_default());
        }
        screen.done(text, &format!("{good} of {all} packets"));
    }
    Ok(())
}

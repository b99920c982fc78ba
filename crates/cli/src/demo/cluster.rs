//! The second half of the demo: two nodes with agents, two pods on each, and the rules of the network model proven with packets.

use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use podwire_lab::{Family, Guard, Lab, Plan, Store};

use super::screen::Screen;

/// A moment is enough, but the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn show(screen: &Screen) -> Result<()> {
    let name = format!("demo-{}", std::process::id());
    // Whoever interrupts the demo leaves nothing either.
    let _guard = Guard::set(&name)?;
    let plan = Plan {
        name: name.clone(),
        nodes: 2,
        pods: 2,
        backend: "vxlan".into(),
        store: Store::Embedded,
        subnets: 1,
        family: Family::Dual,
        cni_network: "flannel".into(),
        policies: None,
        plugin_dirs: Vec::new(),
    };
    screen.title(&format!("A cluster: {plan}"));
    let mut tell = |what: &str, took: Duration| screen.done(what, &format!("{:.2} s", took.as_secs_f64()));
    let lab = Lab::up(plan, &mut tell)?;
    let shown = prove(&lab, screen);
    let start = Instant::now();
    lab.down().context("end the cluster")?;
    shown?;
    if Lab::names().contains(&name) {
        bail!("something of the cluster was left behind");
    }
    let took = format!("{:.2} s: nothing of it is left", start.elapsed().as_secs_f64());
    screen.done("the cluster ends", &took);
    Ok(())
}

fn prove(lab: &Lab, screen: &Screen) -> Result<()> {
    let status = lab.status();
    let mut rows = Vec::new();
    for node in &status.nodes {
        for pod in &node.pods {
            let ips = pod.ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            rows.push(vec![pod.name.clone(), node.name.clone(), ips]);
        }
    }
    screen.table(&["POD", "NODE", "ADDRESSES"], &rows);
    screen.title(
        "The three rules of the Kubernetes network model, with packets: TCP, UDP, ICMP, large ones uncut",
    );
    let report = lab.verify(PATIENCE)?;
    for (rule, good, all) in report.rules() {
        if good < all || all == 0 {
            let first = report.failures().next().map(|failure| report.sentence(failure));
            bail!("{rule}: {good} of {all}; {}", first.unwrap_or_default());
        }
        screen.done(rule, &format!("{good} of {all} packets"));
    }
    Ok(())
}

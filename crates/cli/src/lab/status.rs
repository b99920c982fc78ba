//! `podwire lab status`.

use podwire_agent_ipc::status::UnreachableNode;
use podwire_lab::{Lab, LabService, LabStatus, NodeStatus};
use serde_json::{json, Value};

use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;
use crate::table::table;

pub(super) fn run(name: &str) -> Result<Output, Failure> {
    let failed = || format!("cannot get the status of lab {name}");
    let status = Lab::find(name).map(|lab| lab.status()).map_err(Failure::context(failed()))?;
    let paint = Paint::stdout();
    let verdict = if status.unfinished {
        paint.bad("unfinished: its start was interrupted; `podwire lab down` removes it")
    } else if status.healthy {
        paint.good("healthy")
    } else {
        paint.bad("not healthy")
    };
    let head = format!("lab {name}: {}; {verdict}\n\n", status.spec);
    let output = Output::new(head + &text(&status, paint), json(&status));
    Ok(Output { success: status.healthy, ..output })
}

pub(super) fn text(status: &LabStatus, paint: Paint) -> String {
    let join = |texts: Vec<String>| texts.join(" ");
    let row = |node: &NodeStatus| {
        let agent = match node.agent.as_str() {
            "ready" => paint.good("ready"),
            other => paint.bad(other),
        };
        vec![
            node.name.clone(),
            join(node.addresses.iter().map(ToString::to_string).collect()),
            agent,
            node.peers.to_string(),
            join(node.pod_cidrs.clone()),
        ]
    };
    let rows: Vec<Vec<String>> = status.nodes.iter().map(row).collect();
    let mut text = table(&["NODE", "ADDRESSES", "AGENT", "PEERS", "POD CIDRS"], &rows, paint);
    let pods = status.nodes.iter().flat_map(|node| node.pods.iter().map(move |pod| (node, pod)));
    let pods: Vec<Vec<String>> = pods
        .map(|(node, pod)| {
            let state = if pod.state == "ready" { paint.good("ready") } else { paint.bad(&pod.state) };
            let ips = join(pod.ips.iter().map(ToString::to_string).collect());
            vec![pod.name.clone(), node.name.clone(), state, ips]
        })
        .collect();
    if !pods.is_empty() {
        text += &format!("\n{}", table(&["POD", "NODE", "STATE", "ADDRESSES"], &pods, paint));
    }
    text += &services(&status.services, paint);
    let mut remarks = Vec::new();
    let problems =
        status.services.iter().flat_map(|service| &service.problems).chain(&status.services_problem);
    remarks.extend(problems.map(|problem| format!("{} {problem}\n", paint.bad("problem:"))));
    for node in &status.nodes {
        let problem = |what: &String| format!("{} {}: {what}\n", paint.bad("problem:"), node.name);
        remarks.extend(node.problems.iter().map(problem));
        let unreachable = |peer: &UnreachableNode| {
            format!("no route from {} to {}: {}\n", node.name, peer.node, peer.reason)
        };
        remarks.extend(node.unreachable.iter().map(unreachable));
    }
    let fault = |one: &podwire_lab::ActiveFault| {
        format!("fault: {} on {}; `podwire lab heal` removes it\n", one.fault, one.node)
    };
    remarks.extend(status.faults.iter().map(fault));
    if remarks.is_empty() {
        return text;
    }
    format!("{text}\n{}", remarks.concat())
}

fn services(all: &[LabService], paint: Paint) -> String {
    if all.is_empty() {
        return String::new();
    }
    let row = |service: &LabService| {
        let addresses: Vec<String> = service.addresses.iter().map(ToString::to_string).collect();
        vec![
            service.name.clone(),
            service.kind.clone(),
            addresses.join(" "),
            service.ports.join(" "),
            service.endpoints.to_string(),
        ]
    };
    let head = ["SERVICE", "TYPE", "ADDRESSES", "PORTS", "ENDPOINTS"];
    format!("\n{}", table(&head, &all.iter().map(row).collect::<Vec<_>>(), paint))
}

pub(super) fn json(status: &LabStatus) -> Value {
    serde_json::to_value(status).unwrap_or_else(|error| json!({ "error": error.to_string() }))
}

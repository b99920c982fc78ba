//! `podwire lab status`.

use podwire_lab::{Lab, NodeStatus, Status};
use serde_json::{json, Value};

use crate::paint::Paint;
use crate::table::table;
use crate::{Answer, Failure};

pub(super) fn run(name: &str) -> Result<Answer, Failure> {
    let failed = || format!("cannot look at lab {name}");
    let status = Lab::find(name).map(|lab| lab.status()).map_err(Failure::to(failed()))?;
    let paint = Paint::stdout();
    let verdict = match (status.whole, status.unfinished) {
        (_, true) => paint.bad("unfinished: whoever made it died; podwire lab down removes it"),
        (true, _) => paint.good("whole"),
        (false, _) => paint.bad("not whole"),
    };
    let head = format!("lab {name}: {}; {verdict}\n\n", status.plan);
    let answer = Answer::new(head + &text(&status, paint), json(&status));
    Ok(Answer { success: status.whole, ..answer })
}

pub(super) fn text(status: &Status, paint: Paint) -> String {
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
            join(node.ranges.clone()),
        ]
    };
    let rows: Vec<Vec<String>> = status.nodes.iter().map(row).collect();
    let mut text = table(&["NODE", "ADDRESSES", "AGENT", "PEERS", "RANGES"], &rows, paint);
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
    let mut notes = Vec::new();
    for node in &status.nodes {
        let say = |what: &String| format!("{} {}: {what}\n", paint.bad("problem:"), node.name);
        notes.extend(node.problems.iter().map(say));
        let refused =
            |(peer, why): &(String, String)| format!("no road from {} to {peer}: {why}\n", node.name);
        notes.extend(node.refused.iter().map(refused));
    }
    let broken = |one: &podwire_lab::Broken| {
        format!("broken: {} on {}; podwire lab heal takes it back\n", one.fault, one.node)
    };
    notes.extend(status.broken.iter().map(broken));
    match notes.is_empty() {
        true => text,
        false => format!("{text}\n{}", notes.concat()),
    }
}

pub(super) fn json(status: &Status) -> Value {
    serde_json::to_value(status).unwrap_or_else(|error| json!({ "error": error.to_string() }))
}

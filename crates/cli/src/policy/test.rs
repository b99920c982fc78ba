//! `podwire policy test`: compares policies with expected verdicts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use ipnet::IpNet;
use podwire_policy::oracle::{self, Evaluation};
use podwire_policy::{compile, Packet, Program, Snapshot, Verdict, Warning};
use serde_json::{json, Value};

use super::expectation::{endpoints, packets, Endpoint, Expectations, Table};
use super::explain::{reasons, service, to_json};
use super::source::{self, POD_NETWORKS};
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;

pub(super) const EXAMPLES: &str = "Examples:
  podwire policy test policies/tests/*.yaml
  podwire policy test tests.yaml --strict --json

A file names the objects and the expected verdicts. The last line that matches a connection counts:

  sources: [../manifests]
  tests:
  - name: only web reaches the database
    port: 5432
    expect:
    - deny: '* -> shop/db'
    - allow: 'shop/web -> shop/db'

The exit status is 1 if a verdict differs.";

#[derive(Debug, Args)]
pub(crate) struct Test {
    /// Files with expected verdicts.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Fail on warnings too.
    #[arg(long)]
    strict: bool,
}

/// The result of one table.
struct Outcome {
    table: String,
    /// The number of connections that were compared.
    connections: usize,
    /// Connections with another verdict.
    failures: Vec<Difference>,
    warnings: Vec<Warning>,
}

/// A verdict that is not the expected one.
struct Difference {
    text: String,
    json: Value,
}

impl Test {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let (paint, mut text, mut json, mut success) = (Paint::stdout(), String::new(), Vec::new(), true);
        let (mut tables, mut connections) = (0, 0);
        for file in &self.files {
            let outcomes =
                run_file(file).map_err(Failure::context(format!("cannot test {}", file.display())))?;
            let mut warnings: Vec<Warning> =
                outcomes.iter().flat_map(|outcome| outcome.warnings.clone()).collect();
            warnings.sort();
            warnings.dedup();
            for outcome in &outcomes {
                success &= outcome.failures.is_empty();
                tables += 1;
                connections += outcome.connections;
                text += &outcome.text(file, paint);
            }
            text += &warning_lines(&warnings, paint);
            success &= !self.strict || warnings.is_empty();
            json.push(json!({
                "file": file,
                "tests": outcomes.iter().map(Outcome::to_json).collect::<Vec<_>>(),
                "warnings": warnings.iter().map(warning_json).collect::<Vec<_>>(),
            }));
        }
        text += &format!("{tables} tests, {connections} connections\n");
        Ok(Output { text, json: json!({ "files": json }), success })
    }
}

impl Outcome {
    fn text(&self, file: &Path, paint: Paint) -> String {
        let (state, count) = if self.failures.is_empty() {
            (paint.good("ok"), format!("{} connections", self.connections))
        } else {
            (paint.bad("FAILED"), format!("{} of {} connections", self.failures.len(), self.connections))
        };
        let head = format!("{state}  {}: {} ({count})\n", file.display(), self.table);
        self.failures.iter().fold(head, |text, failure| text + &failure.text)
    }

    fn to_json(&self) -> Value {
        let failures: Vec<&Value> = self.failures.iter().map(|failure| &failure.json).collect();
        json!({ "name": self.table, "connections": self.connections, "failures": failures })
    }
}

fn run_file(path: &Path) -> Result<Vec<Outcome>, podwire_cni_spec::Error> {
    let invalid = |reason: String| podwire_cni_spec::Error::decode(format!("{}: {reason}", path.display()));
    let document = match source::documents(path)?.as_mut_slice() {
        [one] => one.take(),
        others => return Err(invalid(format!("expected one document, found {}", others.len()))),
    };
    let file: Expectations = serde_json::from_value(document).map_err(|error| invalid(error.to_string()))?;
    let dir = path.parent().unwrap_or(Path::new("."));
    let mut base = Snapshot::new();
    source::read(&file.sources.iter().map(|source| dir.join(source)).collect::<Vec<_>>(), &mut base)?;
    for object in &file.objects {
        source::add(object.clone(), &mut base).map_err(|error| invalid(error.msg))?;
    }
    let networks = file
        .pod_networks
        .clone()
        .unwrap_or_else(|| POD_NETWORKS.iter().filter_map(|network| network.parse::<IpNet>().ok()).collect());
    let run = |table: &Table| {
        let in_table = |reason: String| invalid(format!("{:?}: {reason}", table.name));
        let mut snapshot = base.clone();
        replace(&mut snapshot, table).map_err(|error| in_table(error.msg))?;
        snapshot.assign_addresses(&networks);
        run_table(table, &snapshot).map_err(in_table)
    };
    file.tests.iter().map(run).collect()
}

/// Adds the objects of a table. They replace objects of the same kind and name.
fn replace(snapshot: &mut Snapshot, table: &Table) -> Result<(), podwire_cni_spec::Error> {
    let mut own = Snapshot::new();
    for object in &table.objects {
        source::add(object.clone(), &mut own)?;
    }
    let key = |meta: &podwire_policy::api::ObjectMeta| (meta.namespace.clone(), meta.name.clone());
    macro_rules! replace_objects {
        ($list:ident) => {
            let keys: Vec<_> = own.$list.iter().map(|object| key(&object.metadata)).collect();
            snapshot.$list.retain(|object| !keys.contains(&key(&object.metadata)));
            snapshot.$list.append(&mut own.$list);
        };
    }
    replace_objects!(pods);
    replace_objects!(namespaces);
    replace_objects!(nodes);
    replace_objects!(network_policies);
    replace_objects!(cluster_network_policies);
    Ok(())
}

fn run_table(table: &Table, snapshot: &Snapshot) -> Result<Outcome, String> {
    let mut expected: BTreeMap<(Endpoint, Endpoint), Verdict> = BTreeMap::new();
    for line in &table.expect {
        let (verdict, from, to) = line.parse()?;
        let (from, to) = (endpoints(from, snapshot)?, endpoints(to, snapshot)?);
        for (from, to) in from.iter().flat_map(|from| to.iter().map(move |to| (from, to))) {
            // A pod always reaches itself, so a pattern that matches both ends skips it.
            if from.name != to.name {
                expected.insert((from.clone(), to.clone()), verdict);
            }
        }
    }
    let compiled = compile(snapshot, None);
    let mut outcome = Outcome {
        table: table.name.clone(),
        connections: 0,
        failures: Vec::new(),
        warnings: compiled.warnings,
    };
    let ports = table.port.as_ref().map_or_else(|| vec!["80".to_owned()], |ports| ports.texts());
    for ((from, to), verdict) in &expected {
        for port in &ports {
            for packet in packets(from, to, port, snapshot)? {
                outcome.connections += 1;
                let evaluation = evaluate(snapshot, &compiled.program, &packet)?;
                if evaluation.verdict != *verdict {
                    outcome.failures.push(difference(from, to, &packet, &evaluation, *verdict));
                }
            }
        }
    }
    Ok(outcome)
}

/// The oracle's verdict on a packet. The compiled program must agree with the oracle.
fn evaluate(snapshot: &Snapshot, program: &Program, packet: &Packet) -> Result<Evaluation, String> {
    let evaluation = oracle::evaluate(snapshot, packet);
    if program.evaluate(packet) != evaluation.verdict {
        return Err(format!(
            "podwire contradicts itself about {packet:?}: please report this with your files"
        ));
    }
    Ok(evaluation)
}

fn difference(
    from: &Endpoint,
    to: &Endpoint,
    packet: &Packet,
    evaluation: &Evaluation,
    expected: Verdict,
) -> Difference {
    let head = format!(
        "  {} -> {} {}: expected {expected}, is {} ({} -> {})\n",
        from.name,
        to.name,
        service(packet),
        evaluation.verdict,
        packet.source,
        packet.destination
    );
    let text = reasons(evaluation).into_iter().fold(head, |text, line| format!("{text}    {line}\n"));
    let mut json = to_json(from, to, packet, evaluation);
    json["expected"] = expected.to_string().into();
    Difference { text, json }
}

/// Warnings, one per line.
pub(crate) fn warning_lines(warnings: &[Warning], paint: Paint) -> String {
    warnings.iter().map(|warning| format!("{} {warning}\n", paint.bad("warning:"))).collect()
}

pub(crate) fn warning_json(warning: &Warning) -> Value {
    json!({ "object": warning.object, "place": warning.field, "kind": format!("{:?}", warning.kind), "text": warning.text })
}

//! `podwire policy test`: policies held against the verdicts that are expected of them, without a cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use ipnet::IpNet;
use podwire_policy::{compile, oracle, Packet, Program, Snapshot, Verdict, Warning};
use serde_json::{json, Value};

use super::expectation::{ends, packets, End, Expectations, Table};
use super::explain::{reasons, service};
use super::source::{self, POD_NETWORKS};
use super::{warning_json, warning_lines};
use crate::paint::Paint;
use crate::{Answer, Failure};

pub(super) const EXAMPLES: &str = "Examples:
  podwire policy test policies/tests/*.yaml
  podwire policy test tests.yaml --strict --json

A file names the objects and says what is expected; the last line that speaks of a connection counts:

  sources: [../manifests]
  tests:
  - name: only the web reaches the database
    port: 5432
    expect:
    - deny: '* -> shop/db'
    - allow: 'shop/web -> shop/db'

The exit status is 1 if anything is not as expected.";

#[derive(Debug, Args)]
pub(crate) struct Test {
    /// Files with expectations.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Fail on warnings too.
    #[arg(long)]
    strict: bool,
}

/// What came out of one table.
struct Outcome {
    table: String,
    /// How many connections were held against their verdicts.
    connections: usize,
    /// Connections that are not as expected, in words.
    failures: Vec<String>,
    warnings: Vec<Warning>,
}

impl Test {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let (paint, mut text, mut json, mut success) = (Paint::stdout(), String::new(), Vec::new(), true);
        let (mut tables, mut connections) = (0, 0);
        for file in &self.files {
            let outcomes = run_file(file).map_err(Failure::to(format!("cannot test {}", file.display())))?;
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
        Ok(Answer { text, json: json.into(), success })
    }
}

impl Outcome {
    fn text(&self, file: &Path, paint: Paint) -> String {
        let (state, count) = match self.failures.is_empty() {
            true => (paint.good("ok"), format!("{} connections", self.connections)),
            false => {
                (paint.bad("FAILED"), format!("{} of {} connections", self.failures.len(), self.connections))
            }
        };
        let head = format!("{state}  {}: {} ({count})\n", file.display(), self.table);
        self.failures.iter().fold(head, |text, failure| format!("{text}{failure}"))
    }

    fn to_json(&self) -> Value {
        json!({ "name": self.table, "connections": self.connections, "failures": self.failures })
    }
}

fn run_file(path: &Path) -> Result<Vec<Outcome>, podwire_cni_spec::Error> {
    let trouble = |reason: String| podwire_cni_spec::Error::decode(format!("{}: {reason}", path.display()));
    let document = match source::documents(path)?.as_mut_slice() {
        [one] => one.take(),
        others => return Err(trouble(format!("{} documents instead of one", others.len()))),
    };
    let file: Expectations = serde_json::from_value(document).map_err(|error| trouble(error.to_string()))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut base = Snapshot::new();
    source::read(&file.sources.iter().map(|source| folder.join(source)).collect::<Vec<_>>(), &mut base)?;
    for object in &file.objects {
        source::add(object.clone(), &mut base).map_err(|error| trouble(error.msg))?;
    }
    let networks = file
        .pod_networks
        .clone()
        .unwrap_or_else(|| POD_NETWORKS.iter().filter_map(|network| network.parse::<IpNet>().ok()).collect());
    let run = |table: &Table| {
        let in_table = |reason: String| trouble(format!("{:?}: {reason}", table.name));
        let mut snapshot = base.clone();
        replace(&mut snapshot, table).map_err(|error| in_table(error.msg))?;
        snapshot.assign_addresses(&networks);
        run_table(table, &snapshot).map_err(in_table)
    };
    file.tests.iter().map(run).collect()
}

/// Adds a table's own objects; those with the kind and name of another take its place.
fn replace(snapshot: &mut Snapshot, table: &Table) -> Result<(), podwire_cni_spec::Error> {
    let mut own = Snapshot::new();
    for object in &table.objects {
        source::add(object.clone(), &mut own)?;
    }
    let key = |meta: &podwire_policy::api::ObjectMeta| (meta.namespace.clone(), meta.name.clone());
    macro_rules! take_over {
        ($list:ident) => {
            let keys: Vec<_> = own.$list.iter().map(|object| key(&object.metadata)).collect();
            snapshot.$list.retain(|object| !keys.contains(&key(&object.metadata)));
            snapshot.$list.append(&mut own.$list);
        };
    }
    take_over!(pods);
    take_over!(namespaces);
    take_over!(nodes);
    take_over!(network_policies);
    take_over!(cluster_network_policies);
    Ok(())
}

fn run_table(table: &Table, snapshot: &Snapshot) -> Result<Outcome, String> {
    let mut expected: BTreeMap<(End, End), Verdict> = BTreeMap::new();
    for line in &table.expect {
        let (verdict, from, to) = line.read()?;
        let (from, to) = (ends(from, snapshot)?, ends(to, snapshot)?);
        for (from, to) in from.iter().flat_map(|from| to.iter().map(move |to| (from, to))) {
            // A pod always reaches itself, so a pattern that names it twice does not mean that.
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
                let world = (snapshot, &compiled.program);
                outcome.failures.extend(check(world, (from, to), &packet, *verdict)?);
            }
        }
    }
    Ok(outcome)
}

/// Holds one packet against its verdict. The oracle and the compiled program are both asked.
fn check(
    (snapshot, program): (&Snapshot, &Program),
    (from, to): (&End, &End),
    packet: &Packet,
    expected: Verdict,
) -> Result<Option<String>, String> {
    let judgement = oracle::evaluate(snapshot, packet);
    if program.evaluate(packet) != judgement.verdict {
        return Err(format!(
            "podwire contradicts itself about {packet:?}: please report this with your files"
        ));
    }
    if judgement.verdict == expected {
        return Ok(None);
    }
    let head = format!(
        "  {} -> {} {}: expected {expected}, is {} ({} -> {})\n",
        from.name,
        to.name,
        service(packet),
        judgement.verdict,
        packet.source,
        packet.destination
    );
    Ok(Some(reasons(&judgement).into_iter().fold(head, |text, line| format!("{text}    {line}\n"))))
}

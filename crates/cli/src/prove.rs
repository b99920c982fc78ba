//! `podwire verify`: the network model, proven with packets between all pods of this node and the node itself.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use podwire_cni_runtime::{Cache, Record};
use podwire_kernel::Netns;
use podwire_verify::{Endpoint, Kind, Options, Outcome, RemoteEndpoint, Report};

use crate::paint::Paint;
use crate::table::table;
use crate::{duration, Answer, Failure};

pub(crate) const EXAMPLES: &str = "Examples:
  podwire verify
  podwire verify --network pods --peers 10
  podwire verify --json | jq '.probes[] | select(.failure)'
  podwire verify --answer 1m --name n1 > n1.json                  on one node of a cluster, and
  podwire verify --with n1.json                                   on another, meanwhile

Every pod asks every other pod and the node, and the node asks every pod, at each of their addresses: a TCP stream, a UDP
datagram, an ICMP echo, and a datagram as large as the interface promises that must not be cut. Whoever answers says from
which address the packet came: it must be the sender's own. With --answer they answer others for a while, and with --with those that answer on
other nodes are asked too: done from every node, all pairs of a cluster are proven. Pods are those of every runtime that uses the same cache
folder. Threads of this program visit their namespaces; nothing is installed in them. Ends with status 1 if anything
failed.";

/// More than these do not fit on a screen.
const MATRIX: usize = 16;
const SENTENCES: usize = 40;

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// Only pods of this network; may be repeated.
    #[arg(long, value_name = "NAME")]
    network: Vec<String>,
    /// How many others each pod asks [default: all].
    #[arg(long, value_name = "COUNT")]
    peers: Option<usize>,
    /// How long to wait for an answer.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration::parse)]
    patience: Duration,
    /// Ask also those who answer on another node: a file that --answer wrote there; may be repeated.
    #[arg(long, value_name = "FILE", conflicts_with = "answer")]
    with: Vec<PathBuf>,
    /// Let this node and its pods answer other nodes for so long, and print as JSON where they do.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    answer: Option<Duration>,
    /// What the node is called in reports.
    #[arg(long, value_name = "NAME", default_value = "node")]
    name: String,
    /// Where attachments are remembered.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cni")]
    cache_dir: PathBuf,
}

impl Verify {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let failed = |error: podwire_verify::Error| {
            Failure::new("cannot prove anything", podwire_cni_spec::Error::internal(error.to_string()))
        };
        let mut places = self.pods()?;
        if places.is_empty() {
            let error = podwire_cni_spec::Error::new(
                podwire_cni_spec::code::UNKNOWN_CONTAINER,
                "there is no living pod on this node",
            )
            .with_details("attach one: podwire cni add NETWORK NAMESPACE");
            return Err(Failure::new("cannot prove anything", error));
        }
        let here = Netns::current().map_err(podwire_verify::Error::from).map_err(failed)?;
        places.push(Endpoint::node(&self.name, here, Vec::new()).map_err(failed)?);
        if let Some(time) = self.answer {
            return self.answer(&places, time).map_err(failed);
        }
        let elsewhere = self.elsewhere()?;
        let peers = self.peers.unwrap_or(usize::MAX);
        let options = Options { timeout: self.patience, peers, ..Options::default() };
        let report = podwire_verify::verify_with(&places, &elsewhere, options).map_err(failed)?;
        let answer = Answer::new(text(&report, Paint::stdout()), report.to_json());
        Ok(Answer { success: report.holds(), ..answer })
    }

    /// Answers others for a while.
    fn answer(&self, places: &[Endpoint], time: Duration) -> Result<Answer, podwire_verify::Error> {
        let (answering, mut told) = podwire_verify::answer(places)?;
        // Pods of two nodes may be called alike.
        for pod in told.iter_mut().filter(|place| place.kind == Kind::Pod) {
            pod.name = format!("{}@{}", pod.name, self.name);
        }
        let text = serde_json::to_string_pretty(&told).unwrap_or_default();
        // Whoever waits for it reads it while it is true.
        println!("{text}");
        let wait = |source| podwire_verify::Error::System { what: "wait", source };
        podwire_netlink::sys::readable(&[], time).map_err(wait)?;
        drop(answering);
        Ok(Answer::new(String::new(), serde_json::Value::Null))
    }

    /// Those who answer on other nodes.
    fn elsewhere(&self) -> Result<Vec<RemoteEndpoint>, Failure> {
        let mut all = Vec::new();
        for path in &self.with {
            let unreadable = |why: String| {
                let error = podwire_cni_spec::Error::new(
                    podwire_cni_spec::code::DECODE,
                    format!("{}: {why}", path.display()),
                )
                .with_details("it must be what `podwire verify --answer TIME` printed on another node");
                Failure::new("cannot ask other nodes", error)
            };
            let text = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
            let told: Vec<RemoteEndpoint> =
                serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))?;
            all.extend(told);
        }
        Ok(all)
    }

    /// The pods that live, each once, however many networks it is in.
    fn pods(&self) -> Result<Vec<Endpoint>, Failure> {
        let mut found = BTreeMap::new();
        for record in Cache::new(&self.cache_dir).list().records {
            let is_asked_for = self.network.is_empty() || self.network.contains(&record.network);
            let name = name(&record);
            let netns = record.identity().ok().and_then(|identity| identity.netns);
            let Some(path) = netns.filter(|_| is_asked_for) else { continue };
            let Ok(Some(netns)) = Netns::find(&path) else { continue };
            let Ok(identity) = netns.identity() else { continue };
            found.entry(format!("{identity:?}")).or_insert((name, path));
        }
        let place = |(name, path): (String, PathBuf)| {
            Endpoint::pod(&name, path).map_err(|error| {
                Failure::new(
                    format!("cannot look into pod {name}"),
                    podwire_cni_spec::Error::internal(error.to_string()),
                )
            })
        };
        let mut places = found.into_values().map(place).collect::<Result<Vec<_>, _>>()?;
        // A pod without addresses has nothing to prove.
        places.retain(|place| !place.own.is_empty());
        places.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(places)
    }
}

/// What people call a pod: what Kubernetes does; or its namespace, if somebody attached that by hand; or its container.
fn name(record: &Record) -> String {
    let in_kubernetes = record.args().get("K8S_POD_NAME").map(String::from);
    let by_hand = || record.container.starts_with("cnitool-").then(|| record.netns.as_ref()?.file_name());
    let namespace = || Some(by_hand()??.to_string_lossy().into_owned());
    let container = || record.container.chars().take(12).collect();
    in_kubernetes.or_else(namespace).unwrap_or_else(container)
}

/// The matrix, what failed, and the verdict.
pub(crate) fn text(report: &Report, paint: Paint) -> String {
    let (asked, failures) = (report.outcomes.len(), report.failures().count());
    let pods = report.endpoints.iter().filter(|one| one.kind == Kind::Pod).count();
    let mut text = matrix(report, paint);
    let told: Vec<&Outcome> = report.failures().collect();
    for outcome in told.iter().take(SENTENCES) {
        text += &format!("{} {}\n", paint.bad("failed:"), report.sentence(outcome));
    }
    if told.len() > SENTENCES {
        text += &format!("… and {} more: --json has them all\n", told.len() - SENTENCES);
    }
    if let (Some(why), false) = (&report.disturbance, told.is_empty()) {
        text += &format!("{} {why}\n", paint.bad("but:"));
    }
    if !told.is_empty() {
        text += "\n";
    }
    let verdict = match (asked, failures) {
        (0, _) => paint.bad("nobody could be asked: the places share no family of addresses"),
        (_, 0) => format!("{}: no packet was lost, no address translated", paint.good("the model holds")),
        _ => format!(
            "{}: {failures} packets did not come through as they should",
            paint.bad("the model does not hold")
        ),
    };
    let others = if report.endpoints.len() - pods == 1 { "the node" } else { "the nodes" };
    text + &format!(
        "{verdict}\n{pods} pods and {others}, {asked} questions by TCP, UDP, ICMP and in large packets\n"
    )
}

/// Who asks stands at the left, who is asked above. Of many places only those that something is wrong with are shown.
fn matrix(report: &Report, paint: Paint) -> String {
    let cells = report.matrix();
    let is_wrong =
        |place: &usize| report.failures().any(|outcome| outcome.from == *place || outcome.to == *place);
    let mut shown: Vec<usize> = (0..report.endpoints.len()).collect();
    if shown.len() > MATRIX {
        shown.retain(is_wrong);
        shown.truncate(MATRIX);
    }
    if shown.is_empty() {
        return String::new();
    }
    let cell = |from: usize, to: usize| match cells.get(&(from, to)) {
        None => "-".to_owned(),
        Some((good, all)) if good == all => paint.good("ok"),
        Some((good, all)) => paint.bad(&format!("{good}/{all}")),
    };
    let name = |place: usize| report.endpoints[place].name.clone();
    let head: Vec<String> =
        std::iter::once("FROM \\ TO".to_owned()).chain(shown.iter().map(|to| name(*to))).collect();
    let row = |from: &usize| {
        let name = std::iter::once(name(*from));
        name.chain(shown.iter().map(|to| cell(*from, *to))).collect()
    };
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    format!("{}\n", table(&head, &shown.iter().map(row).collect::<Vec<_>>(), paint))
}

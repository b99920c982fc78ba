//! `podwire ipam serve` and `podwire ipam answer`: who gives the plugin `calico-ipam` its addresses.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::blocks::{self, Question};
use clap::Args;
use cni::json;
use netlink::sys;
use serde::Deserialize;
use serde_json::Value;
use steward::{Settings, Steward};

use super::place::Place;
use crate::log::Format;
use crate::{Answer, Failure};

pub(super) const SERVE_EXAMPLES: &str = "\
Examples:
  podwire ipam serve --store http://10.0.0.1:2379              this node's blocks, shared with Calico's nodes in etcd
  podwire ipam serve --store kubernetes --node worker-7
  podwire ipam serve --store http://10.0.0.1:2379 --kubeconfig /etc/kubernetes/podwire.conf    and what pods ask for
  podwire ipam serve --store /var/lib/podwire/ipam.db --stock 32

It lives until SIGTERM. Pods keep their addresses when it ends; whoever comes after it finds them in --state.";

/// SIGINT and SIGTERM: asm-generic/signal.h.
const INTERRUPT: i32 = 2;
const TERMINATE: i32 = 15;
/// How long a wait for them is at a stretch.
const LONG: Duration = Duration::from_secs(3600);

/// Where Calico's node agent writes the node's name.
const NODENAME: &str = "/var/lib/calico/nodename";

#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    place: Place,
    /// This node, as the store knows it [default: /var/lib/calico/nodename, or the host's name].
    #[arg(long, value_name = "NAME", env = "NODENAME", hide_env = true)]
    node: Option<String>,
    /// How many addresses of each family are kept ready; at most a quarter of a block.
    #[arg(long, value_name = "COUNT", default_value_t = 16)]
    stock: usize,
    /// Where leases are kept.
    #[arg(long, value_name = "DIR", default_value = blocks::STATE)]
    state: PathBuf,
    /// Where plugins ask.
    #[arg(long, value_name = "SOCKET", default_value = blocks::DOOR)]
    socket: PathBuf,
}

impl Serve {
    pub(super) fn run(&self) -> Result<Answer, Failure> {
        let what = "own this node's blocks";
        let failed = |error: steward::Error| {
            Failure::new(what, cni::Error::new(error.code(), error.to_string()).with_details(error.hint()))
        };
        // Before any thread is started: all of them leave the signals to this one.
        let signals = sys::signal_descriptor(&[INTERRUPT, TERMINATE]).map_err(|error| {
            Failure::new(what, cni::Error::internal(format!("wait for signals: {error}")))
        })?;
        Format::Text.start();
        let node = self.node.clone().or_else(|| node_name(&Value::Null)).ok_or_else(|| {
            let error = cni::Error::internal("this node has no name");
            Failure::new(what, error.with_details("tell it with --node"))
        })?;
        let place = self.place.clone();
        let opener = move || place.open_or_tell();
        let pods = followed(&self.place, &node, what)?;
        let settings = Settings { node, stock: self.stock.max(1) };
        let mut steward = Steward::start(settings, &self.state, Box::new(opener)).map_err(failed)?;
        if let Some(pods) = pods {
            steward = steward.knowing(pods);
        }
        steward::open_door(&self.socket, steward).map_err(failed)?;
        while !sys::readable(&[signals.as_fd()], LONG).is_ok_and(|ready| ready.iter().any(|is| *is)) {}
        let _ = std::fs::remove_file(&self.socket);
        Ok(Answer::new("", Value::Null))
    }
}

/// Who knows what Kubernetes knows of this node's pods, if there is a Kubernetes.
pub(crate) fn followed(
    place: &Place,
    node: &str,
    what: &str,
) -> Result<Option<Arc<dyn api::pods::Cluster>>, Failure> {
    let Some(pods) = place.pods() else { return Ok(None) };
    let pods = pods.and_then(|pods| pods.follow(node).map(|()| pods)).map_err(|why| {
        let error = cni::Error::internal(format!("follow the pods of {node}: {why}"));
        Failure::new(what, error.with_details("see that --kubeconfig or $KUBECONFIG names a kubeconfig file"))
    })?;
    Ok(Some(Arc::new(pods)))
}

pub(super) const ANSWER_EXAMPLES: &str = "\
The plugins calico and calico-ipam call it where nobody serves: the question and the network's config come as JSON on standard input.";

#[derive(Debug, Args)]
pub(crate) struct AnswerOne {}

/// What the plugin says.
#[derive(Deserialize)]
struct Asked {
    question: Question,
    config: Value,
}

impl AnswerOne {
    pub(super) fn run(&self) -> Result<Answer, Failure> {
        let what = "answer a plugin";
        let bad = |why: String| Failure::new(what, cni::Error::decode(why));
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(|error| bad(error.to_string()))?;
        let Asked { question, config } =
            serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
        let answered = answer(what, &question, &config);
        let json = serde_json::to_value(&answered).map_err(|error| bad(error.to_string()))?;
        Ok(Answer::new(format!("{json}\n"), json))
    }
}

fn answer(what: &str, question: &Question, config: &Value) -> blocks::Answer {
    let place = Place::of_config(config);
    let Some(node) = node_name(config) else {
        return unavailable("this node has no name: write it to /var/lib/calico/nodename".into());
    };
    // Who asks about pods need not have a store.
    if matches!(question, Question::Pod { .. } | Question::Ranges { .. }) {
        return match place.pods().transpose() {
            Ok(None) => steward::pods::answer(None, &node, question),
            Ok(Some(pods)) => steward::pods::answer(Some(&pods), &node, question),
            Err(why) => unavailable(why),
        };
    }
    match place.open(what, false) {
        Ok(store) => steward::direct::answer(&*store, &node, Path::new(blocks::STATE), question),
        Err(failure) => unavailable(failure.error.msg),
    }
}

fn unavailable(msg: String) -> blocks::Answer {
    let hint =
        "see that the network's config names the datastore, and that it can be reached from this node".into();
    blocks::Answer::Failed { code: cni::code::TRY_AGAIN, msg, hint }
}

/// `nodename` of the config, the file of Calico's node agent, `hostname` of the config, the host's name.
pub(crate) fn node_name(config: &Value) -> Option<String> {
    let text = |key: &str| json::get(config, key).and_then(Value::as_str).map(str::to_owned);
    let file = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let named = || text("nodename_file").unwrap_or_else(|| NODENAME.into());
    let candidates = [text("nodename"), file(&named()), text("hostname"), file("/proc/sys/kernel/hostname")];
    candidates.into_iter().flatten().find(|name| !name.is_empty())
}

//! `podwire ipam serve` and `podwire ipam answer`: who gives the plugin `calico-ipam` its addresses.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use podwire_agent::calico::allocator::{self, BlockAllocator, Settings};
use podwire_agent_ipc::addresses::{self, Request};
use podwire_agent_ipc::pods::Cluster;
use podwire_netlink::sys;
use serde::Deserialize;
use serde_json::Value;

use super::owner::{node_name, Owner};
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

#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    owner: Owner,
}

impl Serve {
    pub(super) fn run(&self) -> Result<Answer, Failure> {
        let what = "own this node's blocks";
        let failed = |error: allocator::Error| {
            Failure::new(
                what,
                podwire_cni_spec::Error::new(error.code(), error.to_string()).with_details(error.hint()),
            )
        };
        // Before any thread is started: all of them leave the signals to this one.
        let signals = sys::open_signalfd(&[INTERRUPT, TERMINATE]).map_err(|error| {
            Failure::new(what, podwire_cni_spec::Error::internal(format!("wait for signals: {error}")))
        })?;
        Format::Text.start();
        let owner = &self.owner;
        let node = owner.name(what)?;
        let pods = owner.pods(&node, what)?;
        let settings = Settings { node, warm_addresses: owner.stock() };
        let opener = Box::new(owner.opener());
        let mut block_allocator = BlockAllocator::start(settings, &owner.state, opener).map_err(failed)?;
        if let Some(pods) = pods {
            block_allocator = block_allocator.with_cluster(pods);
        }
        allocator::serve(&owner.socket, block_allocator).map_err(failed)?;
        while !sys::readable(&[signals.as_fd()], LONG).is_ok_and(|ready| ready.iter().any(|is| *is)) {}
        let _ = std::fs::remove_file(&owner.socket);
        Ok(Answer::new("", Value::Null))
    }
}

pub(super) const ANSWER_EXAMPLES: &str = "\
The plugins calico and calico-ipam call it where nobody serves: the question and the network's config come as JSON on standard input.";

#[derive(Debug, Args)]
pub(crate) struct AnswerOne {}

/// What the plugin says.
#[derive(Deserialize)]
struct Asked {
    request: Request,
    config: Value,
}

impl AnswerOne {
    pub(super) fn run(&self) -> Result<Answer, Failure> {
        let what = "answer a plugin";
        let bad = |why: String| Failure::new(what, podwire_cni_spec::Error::decode(why));
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(|error| bad(error.to_string()))?;
        let Asked { request: question, config } =
            serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
        let answered = answer(what, &question, &config);
        let json = serde_json::to_value(&answered).map_err(|error| bad(error.to_string()))?;
        Ok(Answer::new(format!("{json}\n"), json))
    }
}

fn answer(what: &str, question: &Request, config: &Value) -> addresses::Response {
    let place = Place::of_config(config);
    let Some(node) = node_name(config) else {
        return unavailable("this node has no name: write it to /var/lib/calico/nodename".into());
    };
    let is_about_pods = matches!(question, Request::Pod { .. } | Request::PodCidrs { .. });
    let pods = match place.pods().filter(|_| is_about_pods || matches!(question, Request::Assign { .. })) {
        Some(Err(why)) => return unavailable(why),
        Some(Ok(pods)) => Some(pods),
        None => None,
    };
    let cluster = pods.as_ref().map(|pods| pods as &dyn Cluster);
    // Who asks about pods need not have a store.
    if is_about_pods {
        return allocator::pods::respond(cluster, &node, question);
    }
    match place.open(what, false) {
        Ok(store) => {
            allocator::direct::respond(&*store, cluster, &node, Path::new(addresses::STATE_DIR), question)
        }
        Err(failure) => unavailable(failure.error.msg),
    }
}

fn unavailable(msg: String) -> addresses::Response {
    let hint =
        "see that the network's config names the datastore, and that it can be reached from this node".into();
    addresses::Response::Failed { code: podwire_cni_spec::code::TRY_AGAIN, msg, hint }
}

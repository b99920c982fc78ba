//! `podwire ipam serve` and `podwire ipam answer`: the address allocator for the plugin calico-ipam, as a daemon or for one
//! request.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use podwire_agent::calico::allocator::{self, BlockAllocator, PoolWatcher, Settings};
use podwire_agent_ipc::addresses::{self, Request};
use podwire_agent_ipc::pods::Cluster;
use podwire_block_ipam::Ownership;
use podwire_netlink::sys;
use serde::Deserialize;
use serde_json::Value;

use super::node_flags::{node_name, NodeFlags};
use super::store_flags::StoreFlags;
use crate::failure::Failure;
use crate::log::Format;
use crate::output::Output;

pub(super) const SERVE_EXAMPLES: &str = "\
Examples:
  podwire ipam serve --store http://10.0.0.1:2379      share etcd with Calico's nodes
  podwire ipam serve --store kubernetes --node worker-7
  podwire ipam serve --store http://10.0.0.1:2379 --kubeconfig podwire.conf   honour pod annotations
  podwire ipam serve --store /var/lib/podwire/ipam.db --warm-addresses 32

The daemon runs until SIGTERM. Pods keep their addresses when it ends: the leases in --state
survive.";

/// SIGINT and SIGTERM: asm-generic/signal.h.
const INTERRUPT: i32 = 2;
const TERMINATE: i32 = 15;
/// The length of one wait for them. It ends nothing: the wait is repeated.
const WAIT: Duration = Duration::from_secs(3600);

#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    node: NodeFlags,
}

impl Serve {
    pub(super) fn run(&self) -> Result<Output, Failure> {
        let what = "podwire ipam serve cannot run";
        let failed = |error: allocator::Error| {
            Failure::new(
                what,
                podwire_cni_spec::Error::new(error.code(), error.to_string()).with_details(error.hint()),
            )
        };
        // Before any thread starts, so that every thread inherits the blocked signals.
        let signals = sys::open_signalfd(&[INTERRUPT, TERMINATE]).map_err(|error| {
            Failure::new(what, podwire_cni_spec::Error::internal(format!("wait for signals: {error}")))
        })?;
        Format::Text.start();
        let flags = &self.node;
        let node = flags.name(what)?;
        let pods = flags.pods(&node, what)?;
        let settings = Settings { node, warm_addresses: flags.warm_addresses(), claim: Ownership::DURATION };
        let opener = Box::new(flags.opener());
        let mut block_allocator = BlockAllocator::start(settings, &flags.state, opener).map_err(failed)?;
        if let Some(pods) = pods {
            block_allocator = block_allocator.with_cluster(pods);
        }
        let opener = Box::new(flags.opener());
        let _watcher = PoolWatcher::start(block_allocator.clone(), opener).map_err(failed)?;
        allocator::serve(&flags.socket, block_allocator).map_err(failed)?;
        while !sys::readable(&[signals.as_fd()], WAIT).is_ok_and(|ready| ready.iter().any(|is| *is)) {}
        let _ = std::fs::remove_file(&flags.socket);
        Ok(Output::new("", Value::Null))
    }
}

pub(super) const ANSWER_EXAMPLES: &str = "\
The plugins calico and calico-ipam run it if no agent runs on the node. The request and the network
config are read as JSON from standard input.";

#[derive(Debug, Args)]
pub(crate) struct AnswerRequest {}

/// The input from the plugin.
#[derive(Deserialize)]
struct Input {
    request: Request,
    config: Value,
}

impl AnswerRequest {
    pub(super) fn run(&self) -> Result<Output, Failure> {
        let what = "cannot answer the request of the plugin";
        let bad = |why: String| Failure::new(what, podwire_cni_spec::Error::decode(why));
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(|error| bad(error.to_string()))?;
        let Input { request, config } =
            serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
        let answered = answer(what, &request, &config);
        let json = serde_json::to_value(&answered).map_err(|error| bad(error.to_string()))?;
        Ok(Output::new(format!("{json}\n"), json))
    }
}

fn answer(what: &str, request: &Request, config: &Value) -> addresses::Response {
    let store = StoreFlags::of_config(config);
    let Some(node) = node_name(config) else {
        return unavailable("this node has no name: write it to /var/lib/calico/nodename".into());
    };
    let is_about_pods = matches!(request, Request::Pod { .. } | Request::PodCidrs { .. });
    let pods = match store.pods().filter(|_| is_about_pods || matches!(request, Request::Assign { .. })) {
        Some(Err(why)) => return unavailable(why),
        Some(Ok(pods)) => Some(pods),
        None => None,
    };
    let cluster = pods.as_ref().map(|pods| pods as &dyn Cluster);
    // Requests about pods do not need the store of blocks.
    if is_about_pods {
        return allocator::pods::respond(cluster, &node, request);
    }
    match store.open(what, false) {
        Ok(store) => {
            allocator::direct::respond(&*store, cluster, &node, Path::new(addresses::STATE_DIR), request)
        }
        Err(failure) => unavailable(failure.error.msg),
    }
}

fn unavailable(msg: String) -> addresses::Response {
    let hint = "check that the network config names the datastore and that this node can reach it".into();
    addresses::Response::Failed { code: podwire_cni_spec::code::TRY_AGAIN, msg, hint }
}

//! `podwire ipam migrate`: imports the host-local addresses of this node's pods into blocks. The pods keep their addresses,
//! and no other pod gets them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{AdoptOutcome, AffinityOwner, Error, Handle, IpFamily, Request};
use podwire_cni_runtime::Cache;
use podwire_cni_spec::NetworkName;
use podwire_plugins::host_local::{self, Reservation};
use serde_json::{json, Value};

use super::node_flags::node_name;
use super::store_flags::{allocator, rules, StoreFlags};
use crate::failure::Failure;
use crate::output::Output;

pub(super) const EXAMPLES: &str = "Examples:
  podwire ipam migrate k8s-pod-network --dry-run
  podwire ipam migrate k8s-pod-network --store http://10.0.0.1:2379
  podwire ipam migrate k8s-pod-network --store kubernetes --node worker-7 --json

A pool must contain the addresses. The command is idempotent and can run while pods start and stop.
host-local's files stay; `podwire ipam upgrade` removes them when the network uses calico-ipam. The
exit status is 1 if an address cannot be imported.";

const WHAT: &str = "cannot import addresses of host-local";

#[derive(Debug, Args)]
pub(crate) struct Migrate {
    #[command(flatten)]
    source: Source,
    /// Only show what would be imported.
    #[arg(long)]
    dry_run: bool,
}

/// The addresses to import, and the store to import them into.
#[derive(Debug, Args)]
pub(super) struct Source {
    /// Name of the network.
    #[arg(value_name = "NETWORK", default_value = "k8s-pod-network", value_parser = NetworkName::parse)]
    pub(super) network: NetworkName,
    /// Data directory of host-local.
    #[arg(long, value_name = "DIR", default_value = host_local::DATA_FOLDER)]
    data_dir: PathBuf,
    /// Directory of the runtimes' attachment records, which have the pod names.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cni")]
    cache_dir: PathBuf,
    /// Name of this node in the store [default: /var/lib/calico/nodename, or the host name].
    #[arg(long, value_name = "NAME", env = "NODENAME", hide_env = true)]
    node: Option<String>,
    #[command(flatten)]
    store: StoreFlags,
}

/// An address and the result of its import.
pub(super) struct Import {
    pub(super) reservation: Reservation,
    pub(super) result: Result<AdoptOutcome, Error>,
}

impl Migrate {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let imports = self.source.import(WHAT, self.dry_run)?;
        let text: String = imports.iter().map(|import| import.line(self.dry_run)).collect();
        let success = imports.iter().all(|import| import.result.is_ok());
        let text = if imports.is_empty() { no_addresses(&self.source) } else { text };
        Ok(Output { text, json: to_json(&self.source.network, &imports, self.dry_run), success })
    }
}

impl Source {
    /// host-local's directory of the network.
    pub(super) fn dir(&self) -> PathBuf {
        self.data_dir.join(self.network.as_str())
    }

    /// The addresses of the network's pods.
    pub(super) fn reservations(&self) -> Vec<Reservation> {
        let all = host_local::reservations(&self.data_dir).into_iter();
        all.filter(|reservation| reservation.network == self.network.as_str()).collect()
    }

    /// Imports all addresses. Continues after an address that cannot be imported; fails if the store does not answer.
    pub(super) fn import(&self, what: &str, dry_run: bool) -> Result<Vec<Import>, Failure> {
        let reservations = self.reservations();
        if reservations.is_empty() {
            return Ok(Vec::new());
        }
        let node = self.node.clone().or_else(|| node_name(&Value::Null)).ok_or_else(|| {
            let error = podwire_cni_spec::Error::internal("this node has no name");
            Failure::new(what, error.with_details("set it with --node"))
        })?;
        let store = self.store.open(what, false)?;
        let (allocator, rules, pods) = (allocator(&*store), rules(&*store, what)?, self.pods());
        let mut imports = Vec::new();
        for reservation in reservations {
            let request = request(&node, &reservation, &pods);
            let result = if dry_run {
                allocator.check_adopt(&rules, &request, reservation.ip)
            } else {
                allocator.adopt(&rules, &request, reservation.ip)
            };
            match result {
                Err(error @ Error::Store(_)) => return Err(Failure::context(what)(error)),
                result => imports.push(Import { reservation, result }),
            }
        }
        Ok(imports)
    }

    /// The namespaces and names of pods by container id, as far as runtimes have recorded them.
    fn pods(&self) -> BTreeMap<String, Vec<(String, String)>> {
        let records = Cache::new(&self.cache_dir).list().records.into_iter();
        let known = [("K8S_POD_NAMESPACE", "namespace"), ("K8S_POD_NAME", "pod")];
        let named = records.filter(|record| record.network == self.network.as_str()).map(|record| {
            let value = |name: &str| record.arg_pairs.iter().find(|(key, _)| key == name);
            let pairs =
                known.iter().filter_map(|(name, key)| Some(((*key).to_owned(), value(name)?.1.clone())));
            let pairs = pairs.collect();
            (record.container, pairs)
        });
        named.collect()
    }
}

fn request(node: &str, reservation: &Reservation, pods: &BTreeMap<String, Vec<(String, String)>>) -> Request {
    let handle = Handle::id(&reservation.network, &reservation.container);
    let mut request = Request::new(AffinityOwner::host(node), handle);
    request.family = IpFamily::of(reservation.ip);
    request.attributes.extend(pods.get(&reservation.container).into_iter().flatten().cloned());
    request.attributes.insert("timestamp".into(), Timestamp::now().go_string());
    request
}

impl Import {
    pub(super) fn line(&self, dry_run: bool) -> String {
        let Reservation { ip, network, container, .. } = &self.reservation;
        let handle = Handle::id(network, container);
        match &self.result {
            Ok(AdoptOutcome::Recorded) if dry_run => format!("would import {ip} of {handle}\n"),
            Ok(AdoptOutcome::Recorded) => format!("imported {ip} of {handle}\n"),
            Ok(AdoptOutcome::AlreadyRecorded) => format!("{ip} of {handle} was already imported\n"),
            Err(error) => format!("problem: {ip} of {handle}: {error} ({})\n", error.hint()),
        }
    }

    fn json(&self) -> Value {
        let Reservation { ip, network, container, .. } = &self.reservation;
        let result = match &self.result {
            Ok(AdoptOutcome::Recorded) => "imported",
            Ok(AdoptOutcome::AlreadyRecorded) => "alreadyImported",
            Err(_) => "problem",
        };
        let error = self.result.as_ref().err().map(ToString::to_string);
        json!({ "ip": ip, "handle": Handle::id(network, container), "result": result, "error": error })
    }
}

pub(super) fn no_addresses(source: &Source) -> String {
    format!("host-local has no addresses in {}\n", source.dir().display())
}

pub(super) fn to_json(network: &str, imports: &[Import], dry_run: bool) -> Value {
    let addresses: Vec<Value> = imports.iter().map(Import::json).collect();
    json!({ "network": network, "dryRun": dry_run, "addresses": addresses })
}

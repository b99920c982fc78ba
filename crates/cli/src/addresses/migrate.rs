//! `podwire ipam migrate`: what pods of this node have from host-local is entered into blocks. They keep it, and nobody else gets it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{AdoptOutcome, AffinityOwner, Error, Handle, IpFamily, Request};
use podwire_cni_runtime::Cache;
use podwire_cni_spec::NetworkName;
use podwire_plugins::host_local::{self, Reservation};
use serde_json::{json, Value};

use super::owner::node_name;
use super::place::{allocator, rules, Place};
use crate::{Answer, Failure};

pub(super) const EXAMPLES: &str = "Examples:
  podwire ipam migrate k8s-pod-network --dry-run           what would be done
  podwire ipam migrate k8s-pod-network --store http://10.0.0.1:2379
  podwire ipam migrate k8s-pod-network --store kubernetes --node worker-7 --json

A pool must be there that holds the addresses. It may be done again and again, while pods come and go. The files of host-local stay:
`podwire ipam upgrade` removes them when the network gives addresses by calico-ipam. The exit status is 1 if an address could not be
entered.";

const WHAT: &str = "cannot enter addresses of host-local";

#[derive(Debug, Args)]
pub(crate) struct Migrate {
    #[command(flatten)]
    source: Source,
    /// Only tell what would be done.
    #[arg(long)]
    dry_run: bool,
}

/// Whose addresses, from where, and where to.
#[derive(Debug, Args)]
pub(super) struct Source {
    /// The network.
    #[arg(value_name = "NETWORK", default_value = "k8s-pod-network", value_parser = NetworkName::parse)]
    pub(super) network: NetworkName,
    /// Where host-local keeps what it has given.
    #[arg(long, value_name = "DIR", default_value = host_local::DATA_FOLDER)]
    data_dir: PathBuf,
    /// Where runtimes remember attachments, with their pods' names.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cni")]
    cache_dir: PathBuf,
    /// This node, as the store knows it [default: /var/lib/calico/nodename, or the host's name].
    #[arg(long, value_name = "NAME", env = "NODENAME", hide_env = true)]
    node: Option<String>,
    #[command(flatten)]
    place: Place,
}

/// An address, and what became of it.
pub(super) struct Moved {
    pub(super) reservation: Reservation,
    pub(super) became: Result<AdoptOutcome, Error>,
}

impl Migrate {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let moved = self.source.enter(WHAT, self.dry_run)?;
        let text: String = moved.iter().map(|moved| moved.line(self.dry_run)).collect();
        let success = moved.iter().all(|moved| moved.became.is_ok());
        let text = if moved.is_empty() { nothing(&self.source) } else { text };
        Ok(Answer { text, json: told(&self.source.network, &moved, self.dry_run), success })
    }
}

impl Source {
    /// The network's folder.
    pub(super) fn folder(&self) -> PathBuf {
        self.data_dir.join(self.network.as_str())
    }

    /// What pods of the network have.
    pub(super) fn reservations(&self) -> Vec<Reservation> {
        let all = host_local::reservations(&self.data_dir).into_iter();
        all.filter(|reservation| reservation.network == self.network.as_str()).collect()
    }

    /// Enters everything, past what cannot be; a store that does not answer ends it.
    pub(super) fn enter(&self, what: &str, only_look: bool) -> Result<Vec<Moved>, Failure> {
        let reservations = self.reservations();
        if reservations.is_empty() {
            return Ok(Vec::new());
        }
        let node = self.node.clone().or_else(|| node_name(&Value::Null)).ok_or_else(|| {
            let error = podwire_cni_spec::Error::internal("this node has no name");
            Failure::new(what, error.with_details("tell it with --node"))
        })?;
        let store = self.place.open(what, false)?;
        let (allocator, rules, pods) = (allocator(&*store), rules(&*store, what)?, self.pods());
        let mut moved = Vec::new();
        for reservation in reservations {
            let request = request(&node, &reservation, &pods);
            let became = match only_look {
                true => allocator.check_adopt(&rules, &request, reservation.ip),
                false => allocator.adopt(&rules, &request, reservation.ip),
            };
            match became {
                Err(error @ Error::Store(_)) => return Err(super::to(what)(error)),
                became => moved.push(Moved { reservation, became }),
            }
        }
        Ok(moved)
    }

    /// The pods' namespaces and names by their containers, as far as a runtime has written them down.
    fn pods(&self) -> BTreeMap<String, Vec<(String, String)>> {
        let records = Cache::new(&self.cache_dir).list().records.into_iter();
        let known = [("K8S_POD_NAMESPACE", "namespace"), ("K8S_POD_NAME", "pod")];
        let named = records.filter(|record| record.network == self.network.as_str()).map(|record| {
            let value = |name: &str| record.arg_pairs.iter().find(|(key, _)| key == name);
            let told =
                known.iter().filter_map(|(name, key)| Some(((*key).to_owned(), value(name)?.1.clone())));
            let told = told.collect();
            (record.container, told)
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

impl Moved {
    pub(super) fn line(&self, only_look: bool) -> String {
        let Reservation { ip, network, container, .. } = &self.reservation;
        let handle = Handle::id(network, container);
        match &self.became {
            Ok(AdoptOutcome::Recorded) if only_look => format!("would enter {ip} of {handle}\n"),
            Ok(AdoptOutcome::Recorded) => format!("entered {ip} of {handle}\n"),
            Ok(AdoptOutcome::AlreadyRecorded) => format!("{ip} of {handle} was entered before\n"),
            Err(error) => format!("problem: {ip} of {handle}: {error} ({})\n", error.hint()),
        }
    }

    fn json(&self) -> Value {
        let Reservation { ip, network, container, .. } = &self.reservation;
        let became = match &self.became {
            Ok(AdoptOutcome::Recorded) => "entered",
            Ok(AdoptOutcome::AlreadyRecorded) => "before",
            Err(_) => "problem",
        };
        let error = self.became.as_ref().err().map(ToString::to_string);
        json!({ "ip": ip, "handle": Handle::id(network, container), "became": became, "error": error })
    }
}

pub(super) fn nothing(source: &Source) -> String {
    format!("host-local has given nothing in {}\n", source.folder().display())
}

pub(super) fn told(network: &str, moved: &[Moved], only_look: bool) -> Value {
    let addresses: Vec<Value> = moved.iter().map(Moved::json).collect();
    json!({ "network": network, "dryRun": only_look, "addresses": addresses })
}

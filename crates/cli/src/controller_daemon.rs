//! `podwire controller`: the daemon that gives nodes their ranges. Its flags are kube-controller-manager's where that has them.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use podwire_controller::{ClusterCidrs, LeaderElection, LeakCollection, NodeCidrMasks, Settings};
use podwire_kubernetes::ClientOptions;

use crate::addresses::Place;
use crate::{duration, log, Failure};

pub(crate) const EXAMPLES: &str = "Examples:
  podwire controller --cluster-cidr 10.244.0.0/16                      in a pod of the cluster
  podwire controller --cluster-cidr 10.244.0.0/16,fd00:244::/48 --node-cidr-mask-size-ipv4 25
  podwire controller --cluster-cidr 10.0.0.0/8 --service-cluster-ip-range 10.96.0.0/12 --kubeconfig admin.conf
  podwire controller --ipam-store kubernetes                           no ranges; release leaked addresses of blocks
  podwire controller --cluster-cidr 10.244.0.0/16 --ipam-store http://10.0.0.1:2379 --leak-grace-period 5m

Every Node object without spec.podCIDRs gets a range of each network: the lowest that nobody ever had, then the one that was free the longest. What nodes have already is
learned at the start. A range that is a duplicate or makes no sense is told as an event of the node, and stops nobody else. Of several
controllers one works (--leader-elect). With --ipam-store, addresses of pods and nodes that have been gone for the grace period are
released, and handles and claims that lead nowhere removed, and so are objects of nodes that Kubernetes has no longer. kube-controller-manager must not do the same: start it with --allocate-node-cidrs=false.";

#[derive(Debug, Args)]
pub(crate) struct Controller {
    /// What nodes' ranges are cut from: a network, or one of each family.
    #[arg(long, value_name = "CIDR,CIDR", default_value = "", hide_default_value = true)]
    cluster_cidr: String,
    /// The length of a node's range in a cluster of one family [default: 24 for IPv4, 64 for IPv6].
    #[arg(long, value_name = "BITS")]
    node_cidr_mask_size: Option<u8>,
    /// The length of a node's IPv4 range.
    #[arg(long, value_name = "BITS")]
    node_cidr_mask_size_ipv4: Option<u8>,
    /// The length of a node's IPv6 range.
    #[arg(long, value_name = "BITS")]
    node_cidr_mask_size_ipv6: Option<u8>,
    /// The services' networks: no node gets any of them.
    #[arg(long, value_name = "CIDR,CIDR", default_value = "", hide_default_value = true)]
    service_cluster_ip_range: String,
    /// Where pools and blocks are, in which leaked addresses are looked for: kubernetes, members of etcd like
    /// http://10.0.0.1:2379, or a file of SQLite. $CALICO_API_GROUP and $ETCD_CA_CERT_FILE, $ETCD_CERT_FILE, $ETCD_KEY_FILE tell more.
    #[arg(long, value_name = "FILE|URLS|kubernetes")]
    ipam_store: Option<String>,
    /// How long a pod or a node must have been gone before its addresses are released.
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = duration::parse)]
    leak_grace_period: Duration,
    /// A kubeconfig file, if not in a pod of the cluster.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG", hide_env = true)]
    kubeconfig: Option<PathBuf>,
    /// The API server, if not the kubeconfig's.
    #[arg(long, value_name = "URL")]
    master: Option<String>,
    /// Where /healthz, /readyz, /status and /metrics are served.
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    healthz_ip: IpAddr,
    /// At which port; 0 is not at all.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    healthz_port: u16,
    /// Log as text for people or JSON for programs; RUST_LOG=debug tells more.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: log::Format,
    // Last: whatever follows would stand under its heading.
    #[command(flatten)]
    election: ElectionFlags,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Leader election")]
struct ElectionFlags {
    /// Work only while holding the lease, so that several controllers may run.
    #[arg(long, value_name = "BOOL")]
    #[arg(default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    leader_elect: bool,
    /// How long others wait for a leader that is not heard of.
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = duration::parse)]
    leader_elect_lease_duration: Duration,
    /// How long a leader that cannot renew goes on working.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse)]
    leader_elect_renew_deadline: Duration,
    /// How often the lease is renewed or asked for.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration::parse)]
    leader_elect_retry_period: Duration,
    /// The Lease object's name.
    #[arg(long, value_name = "NAME", default_value = "podwire-controller")]
    leader_elect_resource_name: String,
    /// The Lease object's namespace.
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    leader_elect_resource_namespace: String,
}

impl Controller {
    pub(crate) fn run(self) -> Result<(), Failure> {
        self.log_format.start();
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new("the controller cannot work", podwire_cni_spec::Error::internal(error.to_string()))
        };
        let settings = self.settings().map_err(|error| failed(&error))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        runtime.block_on(async {
            let connected =
                ClientOptions { kubeconfig: self.kubeconfig.clone(), api_url: self.master.clone() }
                    .client()
                    .await;
            let client = connected.map_err(|error| failed(&error))?;
            podwire_controller::run(settings, client).await.map_err(|error| failed(&error))
        })
    }

    fn settings(&self) -> podwire_controller::Result<Settings> {
        // kube-controller-manager's default is 0, and some write it.
        let given = |bits: Option<u8>| bits.filter(|bits| *bits > 0);
        let masks = NodeCidrMasks {
            either: given(self.node_cidr_mask_size),
            v4: given(self.node_cidr_mask_size_ipv4),
            v6: given(self.node_cidr_mask_size_ipv6),
        };
        let health_address =
            (self.healthz_port != 0).then_some(SocketAddr::new(self.healthz_ip, self.healthz_port));
        let leak_collection = self.leak_collection();
        let cluster_cidrs = match leak_collection.is_some() && self.cluster_cidr.is_empty() {
            true => None,
            false => Some(ClusterCidrs::new(&self.cluster_cidr, masks, &self.service_cluster_ip_range)?),
        };
        Ok(Settings {
            cluster_cidrs,
            leak_collection,
            leader_election: self.election.leader_election()?,
            health_address,
        })
    }

    fn leak_collection(&self) -> Option<LeakCollection> {
        let place = Place::at(self.ipam_store.clone()?, self.kubeconfig.clone());
        let open = move || place.open_or_tell();
        Some(LeakCollection { open: Arc::new(open), grace: self.leak_grace_period })
    }
}

impl ElectionFlags {
    fn leader_election(&self) -> podwire_controller::Result<Option<LeaderElection>> {
        let election = LeaderElection {
            namespace: self.leader_elect_resource_namespace.clone(),
            name: self.leader_elect_resource_name.clone(),
            lease_duration: self.leader_elect_lease_duration,
            renew_deadline: self.leader_elect_renew_deadline,
            retry_period: self.leader_elect_retry_period,
            ..LeaderElection::default()
        };
        self.leader_elect.then(|| election.validate()).transpose()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        controller: Controller,
    }

    fn settings(flags: &str) -> Result<Settings, String> {
        let line = Line::try_parse_from(std::iter::once("controller").chain(flags.split_whitespace()));
        line.map_err(|error| error.to_string())?.controller.settings().map_err(|error| error.to_string())
    }

    #[test]
    fn flags_are_kube_controller_managers() {
        let both = "--cluster-cidr=10.244.0.0/16,fd00:244::/48 --node-cidr-mask-size-ipv4=25 --node-cidr-mask-size-ipv6=72 \
             --node-cidr-mask-size=0 --service-cluster-ip-range=10.96.0.0/12,fd00:96::/108 --leader-elect=true \
             --leader-elect-lease-duration=30s --leader-elect-renew-deadline=20s --leader-elect-retry-period=5s \
             --leader-elect-resource-name=ranges --leader-elect-resource-namespace=network --healthz-port=10260";
        let settings = settings(both).unwrap();
        let election = settings.leader_election.unwrap();
        assert_eq!((election.name.as_str(), election.namespace.as_str()), ("ranges", "network"));
        assert_eq!(election.renew_deadline, Duration::from_secs(20));
        assert_eq!(settings.health_address.unwrap().to_string(), "0.0.0.0:10260");
    }

    #[test]
    fn alone_it_needs_no_lease() {
        let settings = settings("--cluster-cidr 10.244.0.0/16 --leader-elect=false").unwrap();
        assert!(settings.leader_election.is_none() && settings.health_address.is_none());
    }

    #[test]
    fn leaked_addresses_may_be_looked_for_without_giving_ranges() {
        let settings = settings("--ipam-store http://127.0.0.1:1 --leak-grace-period 5m").unwrap();
        assert!(settings.cluster_cidrs.is_none());
        let collection = settings.leak_collection.unwrap();
        assert_eq!(collection.grace, Duration::from_secs(300));
        let error = (collection.open)().and_then(|store| store.get("/a")).unwrap_err().to_string();
        assert!(error.contains("http://127.0.0.1:1"), "{error}");
    }

    #[test]
    fn flags_that_cannot_work_are_refused_in_a_sentence() {
        for (flags, sentence) in [
            ("", "--cluster-cidr: a cluster network is required"),
            ("--cluster-cidr 10.1.0.0/16,10.2.0.0/16", "has 2 IPv4 networks"),
            ("--cluster-cidr 10.1.0.0/16 --node-cidr-mask-size 12", "a node CIDR of /12 is larger than"),
            (
                "--cluster-cidr 10.1.0.0/16 --service-cluster-ip-range 10.0.0.0/8",
                "covers the whole cluster network",
            ),
            (
                "--cluster-cidr 10.1.0.0/16 --leader-elect-lease-duration 5s",
                "must be longer than --leader-elect-renew-deadline",
            ),
            ("--cluster-cidr 10.1.0.0/16 --node-cidr-mask-size 300", "300 is not in 0..=255"),
        ] {
            let refusal = settings(flags).map(|_| ()).unwrap_err();
            assert!(refusal.contains(sentence), "{flags}: {refusal}");
        }
    }
}

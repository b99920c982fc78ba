//! `podwire controller`: allocates the pod CIDRs of nodes and releases leaked addresses. Flags that kube-controller-manager
//! has keep its names.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use podwire_controller::{ClusterCidrs, LeaderElection, LeakCollection, NodeCidrMasks, Settings};
use podwire_http_server::Listen;
use podwire_kubernetes::ClientOptions;

use crate::failure::Failure;
use crate::ipam::StoreFlags;
use crate::{duration, log};

pub(crate) const EXAMPLES: &str = "Examples:
  podwire controller --cluster-cidr 10.244.0.0/16
      in a pod of the cluster
  podwire controller --cluster-cidr 10.244.0.0/16,fd00:244::/48 --node-cidr-mask-size-ipv4 25
      dual stack
  podwire controller --cluster-cidr 10.0.0.0/8 --service-cluster-ip-range 10.96.0.0/12
      without the addresses of Services
  podwire controller --ipam-store kubernetes
      release leaked addresses of blocks; allocate no pod CIDRs

Every Node without spec.podCIDRs gets one CIDR of each network: the lowest that was never used,
then the one that has been free the longest. The controller reads existing CIDRs at its start. It
reports a duplicate or invalid CIDR as an event of the Node and continues with the others. Of
several controllers one works (--leader-elect). With --ipam-store it releases the addresses of pods
and nodes that were deleted longer ago than the grace period, unused handles and affinities, and
the objects of deleted nodes. For that store it also reads $CALICO_API_GROUP, $ETCD_CA_CERT_FILE,
$ETCD_CERT_FILE and $ETCD_KEY_FILE. Start kube-controller-manager with --allocate-node-cidrs=false.";

#[derive(Debug, Args)]
pub(crate) struct Controller {
    /// Pod network of the cluster: one network, or one of each family.
    #[arg(long, value_name = "CIDR,CIDR", default_value = "", hide_default_value = true)]
    cluster_cidr: String,
    /// Prefix length of a node's pod CIDR in a single-stack cluster [default: 24 or 64].
    #[arg(long, value_name = "BITS")]
    node_cidr_mask_size: Option<u8>,
    /// Prefix length of a node's IPv4 pod CIDR.
    #[arg(long, value_name = "BITS")]
    node_cidr_mask_size_ipv4: Option<u8>,
    /// Prefix length of a node's IPv6 pod CIDR.
    #[arg(long, value_name = "BITS")]
    node_cidr_mask_size_ipv6: Option<u8>,
    /// Service networks, which are excluded from pod CIDRs.
    #[arg(long, value_name = "CIDR,CIDR", default_value = "", hide_default_value = true)]
    service_cluster_ip_range: String,
    /// Store of blocks to search for leaked addresses: an SQLite file, etcd URLs, or kubernetes.
    #[arg(long, value_name = "FILE|URLS|kubernetes")]
    ipam_store: Option<String>,
    /// Time between the deletion of a pod or node and the release of its addresses.
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = duration::parse)]
    leak_grace_period: Duration,
    /// Kubeconfig file [default: the pod's service account].
    #[arg(long, value_name = "FILE", env = "KUBECONFIG", hide_env = true)]
    kubeconfig: Option<PathBuf>,
    /// URL of the API server [default: of the kubeconfig].
    #[arg(long, value_name = "URL")]
    master: Option<String>,
    /// Address for health and metrics in addition to 127.0.0.1 and ::1; 0.0.0.0 or :: for all.
    #[arg(long, value_name = "IP")]
    healthz_ip: Option<IpAddr>,
    /// Port of /healthz, /readyz, /metrics and /status, on loopback; 0 disables the server.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    healthz_port: u16,
    /// Log format; RUST_LOG=debug logs more.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: log::Format,
    // Last: its help heading would also hold for flags that follow.
    #[command(flatten)]
    election: ElectionFlags,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Leader election")]
struct ElectionFlags {
    /// Work only while holding the Lease, so that several controllers can run.
    #[arg(long, value_name = "BOOL")]
    #[arg(default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    leader_elect: bool,
    /// Time after which another controller takes over from a silent leader.
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = duration::parse)]
    leader_elect_lease_duration: Duration,
    /// Time for which a leader that cannot renew its Lease continues.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse)]
    leader_elect_renew_deadline: Duration,
    /// Interval of attempts to renew or acquire the Lease.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration::parse)]
    leader_elect_retry_period: Duration,
    /// Name of the Lease.
    #[arg(long, value_name = "NAME", default_value = "podwire-controller")]
    leader_elect_resource_name: String,
    /// Namespace of the Lease.
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    leader_elect_resource_namespace: String,
}

impl Controller {
    pub(crate) fn run(self) -> Result<(), Failure> {
        self.log_format.start();
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new(
                "podwire controller cannot run",
                podwire_cni_spec::Error::internal(error.to_string()),
            )
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
        // 0 is kube-controller-manager's default and means that the flag is not given.
        let given = |bits: Option<u8>| bits.filter(|bits| *bits > 0);
        let masks = NodeCidrMasks {
            either: given(self.node_cidr_mask_size),
            v4: given(self.node_cidr_mask_size_ipv4),
            v6: given(self.node_cidr_mask_size_ipv6),
        };
        let health =
            (self.healthz_port != 0).then_some(Listen { ip: self.healthz_ip, port: self.healthz_port });
        let leak_collection = self.leak_collection();
        let cluster_cidrs = if leak_collection.is_some() && self.cluster_cidr.is_empty() {
            None
        } else {
            Some(ClusterCidrs::new(&self.cluster_cidr, masks, &self.service_cluster_ip_range)?)
        };
        Ok(Settings {
            cluster_cidrs,
            leak_collection,
            leader_election: self.election.leader_election()?,
            health,
        })
    }

    fn leak_collection(&self) -> Option<LeakCollection> {
        let store = StoreFlags::at(self.ipam_store.clone()?, self.kubeconfig.clone());
        let open = move || store.open_for_daemon();
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
    struct CommandLine {
        #[command(flatten)]
        controller: Controller,
    }

    fn settings(flags: &str) -> Result<Settings, String> {
        let line = CommandLine::try_parse_from(std::iter::once("controller").chain(flags.split_whitespace()));
        line.map_err(|error| error.to_string())?.controller.settings().map_err(|error| error.to_string())
    }

    #[test]
    fn flags_of_kube_controller_manager_are_accepted() {
        let both = "--cluster-cidr=10.244.0.0/16,fd00:244::/48 --node-cidr-mask-size-ipv4=25 --node-cidr-mask-size-ipv6=72 \
             --node-cidr-mask-size=0 --service-cluster-ip-range=10.96.0.0/12,fd00:96::/108 --leader-elect=true \
             --leader-elect-lease-duration=30s --leader-elect-renew-deadline=20s --leader-elect-retry-period=5s \
             --leader-elect-resource-name=ranges --leader-elect-resource-namespace=network --healthz-port=10260";
        let settings = settings(both).unwrap();
        let election = settings.leader_election.unwrap();
        assert_eq!((election.name.as_str(), election.namespace.as_str()), ("ranges", "network"));
        assert_eq!(election.renew_deadline, Duration::from_secs(20));
        assert_eq!(settings.health, Some(Listen { ip: None, port: 10260 }));
    }

    #[test]
    fn without_leader_election_there_is_no_lease() {
        let settings = settings("--cluster-cidr 10.244.0.0/16 --leader-elect=false").unwrap();
        assert!(settings.leader_election.is_none() && settings.health.is_none());
    }

    #[test]
    fn leaked_addresses_are_released_without_cluster_cidrs() {
        let settings = settings("--ipam-store http://127.0.0.1:1 --leak-grace-period 5m").unwrap();
        assert!(settings.cluster_cidrs.is_none());
        let collection = settings.leak_collection.unwrap();
        assert_eq!(collection.grace, Duration::from_secs(300));
        let error = (collection.open)().and_then(|store| store.get("/a")).unwrap_err().to_string();
        assert!(error.contains("http://127.0.0.1:1"), "{error}");
    }

    #[test]
    fn invalid_flags_are_refused() {
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

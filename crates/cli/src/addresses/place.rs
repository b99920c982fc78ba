//! Which store is meant.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use clap::Args;
use podwire_block_ipam::store::{Store, StoreError};
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{Allocator, Rules};
use podwire_cni_spec::json;
use podwire_store_etcd::{EtcdStore, TlsFiles};
use podwire_store_kubernetes::{ApiGroup, KubernetesStore, Pods};
use podwire_store_sqlite::SqliteStore;
use serde_json::Value;

use crate::Failure;

const DEFAULT: &str = "/var/lib/podwire/ipam.db";
const KUBERNETES: &str = "kubernetes";

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Place {
    /// Where pools and blocks are: a file of SQLite, members of etcd like http://10.0.0.1:2379,http://10.0.0.2:2379, or
    /// kubernetes [default: kubernetes if $DATASTORE_TYPE says so, else $ETCD_ENDPOINTS or /var/lib/podwire/ipam.db].
    #[arg(long, value_name = "FILE|URLS|kubernetes")]
    store: Option<String>,
    /// A kubeconfig file: for the store kubernetes, and for what is known of pods beside any store
    /// [default: $KUBECONFIG, or, for kubernetes, the pod that it runs in].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Which of Calico's custom resources, for kubernetes: crd.projectcalico.org/v1 or projectcalico.org/v3
    /// [default: $CALICO_API_GROUP, or what the server has].
    #[arg(long, value_name = "GROUP")]
    calico_api_group: Option<ApiGroup>,
    /// Who signed etcd's certificate, in PEM [default: $ETCD_CA_CERT_FILE].
    #[arg(long, value_name = "FILE")]
    etcd_ca_cert_file: Option<PathBuf>,
    /// Our certificate for etcd, in PEM [default: $ETCD_CERT_FILE].
    #[arg(long, value_name = "FILE")]
    etcd_cert_file: Option<PathBuf>,
    /// Its key, in PEM [default: $ETCD_KEY_FILE].
    #[arg(long, value_name = "FILE")]
    etcd_key_file: Option<PathBuf>,
}

impl Place {
    /// The datastore that a network's config names, in Calico's words. `sqlite` is ours, for a machine without a cluster.
    pub(super) fn of_config(config: &Value) -> Place {
        let text = |key: &str| json::get(config, key).and_then(Value::as_str).map(str::to_owned);
        let path = |key: &str| text(key).filter(|text| !text.is_empty()).map(PathBuf::from);
        let kubernetes = json::get(config, "kubernetes").and_then(|section| json::get(section, "kubeconfig"));
        let store = match text("datastore_type").as_deref() {
            Some(KUBERNETES) => Some(KUBERNETES.into()),
            Some("sqlite") => Some(text("sqlite_path").unwrap_or_else(|| DEFAULT.into())),
            _ => text("etcd_endpoints"),
        };
        Place {
            store,
            kubeconfig: kubernetes.and_then(Value::as_str).map(PathBuf::from),
            calico_api_group: text("calico_api_group").and_then(|group| group.parse().ok()),
            etcd_ca_cert_file: path("etcd_ca_cert_file"),
            etcd_cert_file: path("etcd_cert_file"),
            etcd_key_file: path("etcd_key_file"),
        }
    }

    /// A store by its name, with what the variables tell of it.
    pub(crate) fn at(store: String, kubeconfig: Option<PathBuf>) -> Place {
        Place { store: Some(store), kubeconfig, ..Place::default() }
    }

    /// Opens the store, for a daemon: what fails is the store's, and is tried again.
    pub(crate) fn open_or_tell(&self) -> Result<Box<dyn Store>, StoreError> {
        self.open("open the store of blocks", true).map_err(|failure| StoreError::Unavailable {
            store: self.store.clone().unwrap_or_else(|| "of blocks".into()),
            verb: "open",
            key: String::new(),
            why: failure.error.to_string(),
        })
    }

    /// The store's name, as it is told or as Calico's variables say.
    fn name(&self) -> String {
        self.store.clone().or_else(by_calicos_variables).unwrap_or_else(|| DEFAULT.into())
    }

    /// Who knows the cluster's pods: the store itself, if it is Kubernetes, or the API that is named beside another one. None, if there is no
    /// Kubernetes.
    pub(crate) fn pods(&self) -> Option<Result<Pods, String>> {
        let kubeconfig = self.kubeconfig();
        let is_there = kubeconfig.is_some() || self.name() == KUBERNETES;
        is_there.then(|| Pods::connect(kubeconfig.as_deref()))
    }

    /// Opens the store. A file that is not there is made only if `make` says so.
    pub(crate) fn open(&self, what: &str, make: bool) -> Result<Box<dyn Store>, Failure> {
        let store = self.name();
        let told = |error: StoreError| super::to(what)(error.into());
        match store.as_str() {
            KUBERNETES => self.open_kubernetes(what),
            members if members.contains("://") => self.open_etcd(members).map_err(told),
            file => {
                let path = Path::new(file.strip_prefix("sqlite:").unwrap_or(file));
                if !make && !path.exists() {
                    let error = podwire_cni_spec::Error::internal(format!("there is no {}", path.display()));
                    let hint = "name a store with --store; podwire ipam pool makes a new one";
                    return Err(Failure::new(what, error.with_details(hint)));
                }
                if let Some(folder) = path.parent().filter(|_| make) {
                    // What fails here is told by whoever opens the file.
                    let _ = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
                }
                Ok(Box::new(SqliteStore::open(path).map_err(told)?))
            }
        }
    }

    /// The kubeconfig that was named.
    pub(crate) fn kubeconfig(&self) -> Option<PathBuf> {
        file(&self.kubeconfig, "KUBECONFIG")
    }

    fn open_etcd(&self, members: &str) -> Result<Box<dyn Store>, StoreError> {
        let authority = file(&self.etcd_ca_cert_file, "ETCD_CA_CERT_FILE");
        let identity =
            file(&self.etcd_cert_file, "ETCD_CERT_FILE").zip(file(&self.etcd_key_file, "ETCD_KEY_FILE"));
        let files = (authority.is_some() || identity.is_some()).then_some(TlsFiles { authority, identity });
        let members: Vec<String> = members.split(',').map(|member| member.trim().into()).collect();
        Ok(Box::new(EtcdStore::connect(&members, files.as_ref())?))
    }

    fn open_kubernetes(&self, what: &str) -> Result<Box<dyn Store>, Failure> {
        let named = variable("CALICO_API_GROUP").map(|text| text.parse::<ApiGroup>()).transpose();
        let group = match (self.calico_api_group, named) {
            (Some(group), _) => Some(group),
            (None, Ok(group)) => group,
            (None, Err(why)) => {
                return Err(Failure::new(
                    what,
                    podwire_cni_spec::Error::internal(format!("$CALICO_API_GROUP: {why}")),
                ))
            }
        };
        let store = KubernetesStore::connect(self.kubeconfig().as_deref(), group);
        Ok(Box::new(store.map_err(|error| super::to(what)(error.into()))?))
    }
}

fn by_calicos_variables() -> Option<String> {
    match variable("DATASTORE_TYPE").as_deref() {
        Some(KUBERNETES) => Some(KUBERNETES.into()),
        _ => variable("ETCD_ENDPOINTS"),
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn file(option: &Option<PathBuf>, name: &str) -> Option<PathBuf> {
    option.clone().or_else(|| variable(name).map(PathBuf::from))
}

/// The rules of a store.
pub(super) fn rules(store: &dyn Store, what: &str) -> Result<Rules, Failure> {
    Rules::load(store).map_err(super::to(what))
}

/// An allocator by this machine's clock.
pub(super) fn allocator(store: &dyn Store) -> Allocator<'_> {
    Allocator::new(store, Timestamp::now)
}

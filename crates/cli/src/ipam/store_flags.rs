//! The flags that name a store of pools and blocks, and opening it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use clap::Args;
use podwire_block_ipam::store::{Store, StoreError};
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{Allocator, Rules};
use podwire_cni_spec::json;
use podwire_store_etcd::{EtcdStore, TlsFiles};
use podwire_store_kubernetes::{ApiGroup, KubernetesStore, Pods};
use podwire_store_sqlite::SqliteStore;
use serde_json::Value;

use crate::failure::Failure;

const DEFAULT: &str = "/var/lib/podwire/ipam.db";
const KUBERNETES: &str = "kubernetes";

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct StoreFlags {
    /// Store [default: $DATASTORE_TYPE, $ETCD_ENDPOINTS or /var/lib/podwire/ipam.db].
    #[arg(long, value_name = "FILE|URLS|kubernetes")]
    store: Option<String>,
    /// Kubeconfig file, for the store and for pods [default: $KUBECONFIG, or the service account].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// API group: crd.projectcalico.org/v1 or projectcalico.org/v3 [default: $CALICO_API_GROUP].
    #[arg(long, value_name = "GROUP")]
    calico_api_group: Option<ApiGroup>,
    /// CA certificates of etcd, in PEM [default: $ETCD_CA_CERT_FILE].
    #[arg(long, value_name = "FILE")]
    etcd_ca_cert_file: Option<PathBuf>,
    /// Client certificate for etcd, in PEM [default: $ETCD_CERT_FILE].
    #[arg(long, value_name = "FILE")]
    etcd_cert_file: Option<PathBuf>,
    /// Key of the client certificate, in PEM [default: $ETCD_KEY_FILE].
    #[arg(long, value_name = "FILE")]
    etcd_key_file: Option<PathBuf>,
    /// Whether this daemon has opened the store. All copies of the flags share it.
    #[arg(skip)]
    was_opened: Arc<AtomicBool>,
}

impl StoreFlags {
    /// The datastore of a network config, with Calico's keys. `sqlite` is Podwire's addition for a machine without a cluster.
    pub(super) fn of_config(config: &Value) -> StoreFlags {
        let text = |key: &str| json::get(config, key).and_then(Value::as_str).map(str::to_owned);
        let path = |key: &str| text(key).filter(|text| !text.is_empty()).map(PathBuf::from);
        let kubernetes = json::get(config, "kubernetes").and_then(|section| json::get(section, "kubeconfig"));
        let store = match text("datastore_type").as_deref() {
            Some(KUBERNETES) => Some(KUBERNETES.into()),
            Some("sqlite") => Some(text("sqlite_path").unwrap_or_else(|| DEFAULT.into())),
            _ => text("etcd_endpoints"),
        };
        StoreFlags {
            store,
            kubeconfig: kubernetes.and_then(Value::as_str).map(PathBuf::from),
            calico_api_group: text("calico_api_group").and_then(|group| group.parse().ok()),
            etcd_ca_cert_file: path("etcd_ca_cert_file"),
            etcd_cert_file: path("etcd_cert_file"),
            etcd_key_file: path("etcd_key_file"),
            was_opened: Arc::default(),
        }
    }

    /// A store by its name. Environment variables supply the rest.
    pub(crate) fn at(store: String, kubeconfig: Option<PathBuf>) -> StoreFlags {
        StoreFlags { store: Some(store), kubeconfig, ..StoreFlags::default() }
    }

    /// Opens the store for a daemon, which retries after an error of the store.
    pub(crate) fn open_for_daemon(&self) -> Result<Box<dyn Store>, StoreError> {
        // A file that was removed meanwhile is not replaced by an empty one: its addresses would be assigned twice.
        let create = !self.was_opened.load(Ordering::SeqCst);
        let opened =
            self.open("open the store of blocks", create).map_err(|failure| StoreError::Unavailable {
                store: self.store.clone().unwrap_or_else(|| "of blocks".into()),
                verb: "open",
                key: String::new(),
                why: failure.error.to_string(),
            })?;
        self.was_opened.store(true, Ordering::SeqCst);
        Ok(opened)
    }

    /// The store's name, from the flag or from Calico's variables.
    fn name(&self) -> String {
        self.store.clone().or_else(from_environment).unwrap_or_else(|| DEFAULT.into())
    }

    /// The pods in Kubernetes, if Kubernetes is the store or --kubeconfig names a cluster beside another store.
    pub(crate) fn pods(&self) -> Option<Result<Pods, String>> {
        let kubeconfig = self.kubeconfig();
        let has_cluster = kubeconfig.is_some() || self.name() == KUBERNETES;
        has_cluster.then(|| Pods::connect(kubeconfig.as_deref()))
    }

    /// Opens the store. A missing file is created only if `create` is set.
    pub(crate) fn open(&self, what: &str, create: bool) -> Result<Box<dyn Store>, Failure> {
        let store = self.name();
        match store.as_str() {
            KUBERNETES => self.open_kubernetes(what),
            members if members.contains("://") => self.open_etcd(members).map_err(Failure::context(what)),
            file => {
                let path = Path::new(file.strip_prefix("sqlite:").unwrap_or(file));
                if !path.try_exists().map_err(Failure::reading(what, path))? && !create {
                    return Err(missing(what, path));
                }
                if let Some(dir) = path.parent().filter(|_| create) {
                    // If this fails, opening the file fails and reports the error.
                    let _ = podwire_fs::create_state_dir(dir);
                }
                Ok(Box::new(SqliteStore::open(path).map_err(Failure::context(what))?))
            }
        }
    }

    /// The configured kubeconfig.
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
        Ok(Box::new(store.map_err(Failure::context(what))?))
    }
}

fn missing(what: &str, path: &Path) -> Failure {
    let error = podwire_cni_spec::Error::internal(format!("{} does not exist", path.display()));
    Failure::new(what, error.with_details("name a store with --store; `podwire ipam pool` creates a new one"))
}

fn from_environment() -> Option<String> {
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

/// The pools and settings of a store.
pub(super) fn rules(store: &dyn Store, what: &str) -> Result<Rules, Failure> {
    Rules::load(store).map_err(Failure::context(what))
}

/// An allocator with the clock of this machine.
pub(super) fn allocator(store: &dyn Store) -> Allocator<'_> {
    Allocator::new(store, Timestamp::now)
}

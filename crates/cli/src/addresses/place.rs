//! Which store is meant.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use ipam::blocks::{Allocator, Rules};
use ipam::moment::Moment;
use ipam::store::Store;
use store_etcd::{EtcdStore, TlsFiles};
use store_sqlite::SqliteStore;

use crate::Failure;

const DEFAULT: &str = "/var/lib/podwire/ipam.db";

#[derive(Debug, Args)]
pub(super) struct Place {
    /// Where pools and blocks are: a file of SQLite, or members of etcd like http://10.0.0.1:2379,http://10.0.0.2:2379
    /// [default: $ETCD_ENDPOINTS or /var/lib/podwire/ipam.db].
    #[arg(long, value_name = "FILE|URLS")]
    store: Option<String>,
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
    /// Opens the store. A file that is not there is made only if `make` says so.
    pub(super) fn open(&self, what: &str, make: bool) -> Result<Box<dyn Store>, Failure> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let store =
            self.store.clone().or_else(|| variable("ETCD_ENDPOINTS")).unwrap_or_else(|| DEFAULT.into());
        let opened: Result<Box<dyn Store>, _> = match store.contains("://") {
            true => {
                let file = |option: &Option<PathBuf>, name: &str| {
                    option.clone().or_else(|| variable(name).map(PathBuf::from))
                };
                let authority = file(&self.etcd_ca_cert_file, "ETCD_CA_CERT_FILE");
                let identity = file(&self.etcd_cert_file, "ETCD_CERT_FILE")
                    .zip(file(&self.etcd_key_file, "ETCD_KEY_FILE"));
                let files =
                    (authority.is_some() || identity.is_some()).then_some(TlsFiles { authority, identity });
                let members: Vec<String> = store.split(',').map(|member| member.trim().into()).collect();
                EtcdStore::connect(&members, files.as_ref()).map(|store| Box::new(store) as Box<dyn Store>)
            }
            false => {
                let path = Path::new(store.strip_prefix("sqlite:").unwrap_or(&store));
                if !make && !path.exists() {
                    let error = cni::Error::internal(format!("there is no {}", path.display()));
                    let hint = "name a store with --store; podwire ipam pool makes a new one";
                    return Err(Failure::new(what, error.with_details(hint)));
                }
                SqliteStore::open(path).map(|store| Box::new(store) as Box<dyn Store>)
            }
        };
        opened.map_err(|error| super::to(what)(error.into()))
    }
}

/// The rules of a store.
pub(super) fn rules(store: &dyn Store, what: &str) -> Result<Rules, Failure> {
    Rules::load(store).map_err(super::to(what))
}

/// An allocator by this machine's clock.
pub(super) fn allocator(store: &dyn Store) -> Allocator<'_> {
    Allocator::new(store, || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment::from_unix_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    })
}

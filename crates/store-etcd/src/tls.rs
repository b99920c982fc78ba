//! The files by which nodes and etcd trust each other, as Calico names them.

use std::path::PathBuf;

use etcd_client::{Certificate, Identity, TlsOptions};

/// Files in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Who signed etcd's certificate (`etcd_ca_cert_file`).
    pub authority: Option<PathBuf>,
    /// Our certificate and its key (`etcd_cert_file`, `etcd_key_file`).
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    pub(crate) fn read(&self) -> Result<TlsOptions, String> {
        let read =
            |path: &PathBuf| std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
        let mut options = TlsOptions::new();
        if let Some(path) = &self.authority {
            options = options.ca_certificate(Certificate::from_pem(read(path)?));
        }
        if let Some((certificate, key)) = &self.identity {
            options = options.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        Ok(options)
    }
}

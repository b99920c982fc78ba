//! The TLS files of the connection to etcd.

use std::path::PathBuf;

use etcd_client::{Certificate, Identity, TlsOptions};

/// PEM files, with the names of Calico's configuration keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate authority of etcd's certificate (`etcd_ca_cert_file`).
    pub authority: Option<PathBuf>,
    /// The client certificate and its key (`etcd_cert_file`, `etcd_key_file`).
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

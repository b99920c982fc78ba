//! TLS certificates for a server and a client of one certificate authority.

use std::path::PathBuf;
use std::sync::Arc;

use crate::process::{openssl, TempDir};

/// PEM files in a temporary directory that is removed with the last clone.
///
/// `ca.pem` signs `server.pem` and `client.pem`; `stranger.pem` is an authority that signs nothing. Each has a `.key`.
#[derive(Clone)]
pub struct Certificates(Arc<TempDir>);

impl Certificates {
    /// Creates all files.
    pub fn create() -> Certificates {
        let dir = TempDir::new("certificates");
        let run = |arguments: String| openssl(dir.path(), &arguments);
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        for name in ["ca", "stranger"] {
            run(format!("req -x509 {key} -keyout {name}.key -out {name}.pem -days 2 -subj /CN={name}"));
        }
        let uses = [("server", "subjectAltName=IP:127.0.0.1\n"), ("client", "extendedKeyUsage=clientAuth\n")];
        for (name, usage) in uses {
            std::fs::write(dir.path().join(format!("{name}.ext")), usage).unwrap();
            run(format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
            let signed = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2";
            run(format!("x509 -req -in {name}.csr {signed} -extfile {name}.ext -out {name}.pem"));
        }
        Certificates(Arc::new(dir))
    }

    /// The path of a file, such as `client.pem` or `client.key`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// etcd's arguments for TLS that demands a client certificate.
    pub(crate) fn etcd_arguments(&self) -> Vec<String> {
        let files = [("cert-file", "server.pem"), ("key-file", "server.key"), ("trusted-ca-file", "ca.pem")];
        let mut all: Vec<String> = files
            .into_iter()
            .flat_map(|(key, name)| [format!("--{key}"), self.path(name).display().to_string()])
            .collect();
        all.push("--client-cert-auth".into());
        all
    }
}

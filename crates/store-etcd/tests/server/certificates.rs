//! Certificates for a server and a client of one authority, and an authority that nobody knows.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use podwire_store_etcd::TlsFiles;

/// Files in a folder that goes with the last of these.
#[derive(Clone)]
pub struct Certificates(Arc<Folder>);

struct Folder(PathBuf);

impl Certificates {
    pub fn make() -> Certificates {
        let folder = Folder(super::scratch());
        std::fs::create_dir_all(&folder.0).unwrap();
        let run = |arguments: String| openssl(&folder.0, &arguments);
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        for name in ["ca", "stranger"] {
            run(format!("req -x509 {key} -keyout {name}.key -out {name}.pem -days 2 -subj /CN={name}"));
        }
        let uses = [("server", "subjectAltName=IP:127.0.0.1\n"), ("client", "extendedKeyUsage=clientAuth\n")];
        for (name, usage) in uses {
            std::fs::write(folder.0.join(format!("{name}.ext")), usage).unwrap();
            run(format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
            let signed = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2";
            run(format!("x509 -req -in {name}.csr {signed} -extfile {name}.ext -out {name}.pem"));
        }
        Certificates(Arc::new(folder))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0 .0.join(name)
    }

    /// What the client brings.
    pub fn files(&self) -> TlsFiles {
        TlsFiles {
            authority: Some(self.path("ca.pem")),
            identity: Some((self.path("client.pem"), self.path("client.key"))),
        }
    }

    /// What the server is started with.
    pub fn arguments(&self) -> Vec<String> {
        let files = [("cert-file", "server.pem"), ("key-file", "server.key"), ("trusted-ca-file", "ca.pem")];
        let mut all: Vec<String> = files
            .into_iter()
            .flat_map(|(key, name)| [format!("--{key}"), self.path(name).display().to_string()])
            .collect();
        all.push("--client-cert-auth".into());
        all
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn openssl(folder: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .output()
        .expect("openssl");
    assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

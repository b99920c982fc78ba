//! An etcd of one member, on ports of its own, with a folder of its own, that ends with the test.

mod certificates;

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

pub use certificates::Certificates;
use podwire_store_etcd::EtcdStore;

pub struct Server {
    process: Option<Child>,
    folder: PathBuf,
    ports: (u16, u16),
    /// With these it talks only to clients that have one of the same authority.
    certificates: Option<Certificates>,
    /// What else it is started with.
    arguments: Vec<String>,
}

impl Server {
    pub fn start() -> Server {
        Server::start_as(None, &[])
    }

    #[allow(dead_code)] // not every user of this file has any
    pub fn start_with(certificates: &Certificates) -> Server {
        Server::start_as(Some(certificates), &[])
    }

    #[allow(dead_code)] // nor these
    pub fn start_by(arguments: &[&str]) -> Server {
        Server::start_as(None, arguments)
    }

    fn start_as(certificates: Option<&Certificates>, arguments: &[&str]) -> Server {
        let folder = scratch();
        // Somebody else may take a port between our look and etcd's: then other ports are tried.
        for _ in 0..5 {
            let _ = std::fs::remove_dir_all(&folder);
            let (folder, certificates) = (folder.clone(), certificates.cloned());
            let arguments = arguments.iter().map(ToString::to_string).collect();
            let mut server = Server { process: None, folder, ports: free_ports(), certificates, arguments };
            if server.try_to_start() {
                return server;
            }
        }
        panic!("etcd does not start: is the package etcd-server there?");
    }

    pub fn url(&self) -> String {
        match self.certificates {
            Some(_) => url(self.ports.0).replace("http:", "https:"),
            None => url(self.ports.0),
        }
    }

    pub fn store(&self) -> EtcdStore {
        let files = self.certificates.as_ref().map(Certificates::files);
        EtcdStore::connect(&[self.url()], files.as_ref()).unwrap()
    }

    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    pub fn start_again(&mut self) {
        assert!(self.try_to_start(), "etcd does not start again");
    }

    /// etcd says on its standard error when it serves clients.
    fn try_to_start(&mut self) -> bool {
        let (client, peer) = (self.url(), url(self.ports.1));
        let secured = self.certificates.as_ref().map(Certificates::arguments).unwrap_or_default();
        let process = Command::new("etcd")
            .env_clear()
            .env("PATH", "/usr/bin:/bin:/usr/local/bin")
            .arg("--data-dir")
            .arg(&self.folder)
            .args(["--name", "test", "--unsafe-no-fsync", "--logger", "zap", "--log-outputs", "stderr"])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("test={peer}")])
            .args(secured)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut process) = process else { return false };
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        self.process = Some(process);
        let serves = lines.by_ref().map_while(Result::ok).any(|line| line.contains("serving client traffic"));
        // Whatever else it says is read and thrown away, so that it never waits for a reader.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        if !serves {
            self.stop();
        }
        serves
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The path of a folder that nobody else has.
fn scratch() -> PathBuf {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("podwire-etcd-{}-{number}", std::process::id()))
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

fn free_ports() -> (u16, u16) {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [client, peer] = listeners.map(|listener| listener.local_addr().unwrap().port());
    (client, peer)
}

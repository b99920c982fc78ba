//! A real etcd with one member.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};

use etcd_client::{Client, ConnectOptions, GetOptions, PutOptions};

use crate::process::{free_ports, ChildGuard, TempDir};
use crate::Certificates;

/// A running etcd.
pub struct EtcdServer {
    child: Option<ChildGuard>,
    program: PathBuf,
    dir: TempDir,
    client_port: u16,
    peer_port: u16,
    /// With certificates, the server accepts only clients with a certificate of the same authority.
    certificates: Option<Certificates>,
    arguments: Vec<String>,
    _slot: Slot,
}

impl EtcdServer {
    /// Starts the etcd in `PATH` without TLS.
    pub fn start() -> EtcdServer {
        EtcdServer::launch(Path::new("etcd"), None, &[])
    }

    /// Starts the etcd in `PATH` with TLS and client certificates.
    pub fn start_with_tls(certificates: &Certificates) -> EtcdServer {
        EtcdServer::launch(Path::new("etcd"), Some(certificates), &[])
    }

    /// Starts the etcd in `PATH` with additional arguments.
    pub fn start_with_arguments(arguments: &[&str]) -> EtcdServer {
        EtcdServer::launch(Path::new("etcd"), None, arguments)
    }

    /// Starts another etcd program.
    pub(crate) fn start_program(program: &Path) -> EtcdServer {
        EtcdServer::launch(program, None, &[])
    }

    fn launch(program: &Path, certificates: Option<&Certificates>, arguments: &[&str]) -> EtcdServer {
        // Another program may take a port before etcd listens on it. Other ports are tried then.
        for _ in 0..5 {
            let [client_port, peer_port] = free_ports();
            let mut server = EtcdServer {
                child: None,
                program: program.into(),
                dir: TempDir::new("etcd"),
                client_port,
                peer_port,
                certificates: certificates.cloned(),
                arguments: arguments.iter().map(ToString::to_string).collect(),
                _slot: Slot::take(),
            };
            if server.try_start() {
                return server;
            }
        }
        panic!("{} does not start: is the package etcd-server installed?", program.display());
    }

    /// The client URL.
    pub fn url(&self) -> String {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.client_port)
    }

    /// Kills the server. Its data stays.
    pub fn stop(&mut self) {
        self.child = None;
    }

    /// Starts the server again on the same ports with the same data.
    pub fn restart(&mut self) {
        assert!(self.try_start(), "etcd does not start again");
    }

    /// Deletes the data of a stopped server.
    pub fn delete_data(&mut self) {
        assert!(self.child.is_none(), "the server runs");
        std::fs::remove_dir_all(self.data_dir()).unwrap();
    }

    /// Sends a signal, such as `STOP` or `CONT`.
    pub fn signal(&self, name: &str) {
        let pid = self.child.as_ref().expect("the server runs").0.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// A client for a server without TLS.
    pub async fn client(&self) -> Client {
        Client::connect([self.url()], None::<ConnectOptions>).await.unwrap()
    }

    /// Writes a key.
    pub async fn put(&self, key: &str, value: &str) {
        self.client().await.put(key, value, None::<PutOptions>).await.unwrap();
    }

    /// All keys under a prefix, with their values and whether they have a lease.
    pub async fn dump(&self, prefix: &str) -> Vec<(String, String, bool)> {
        let response = self.client().await.get(prefix, Some(GetOptions::new().with_prefix())).await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        response.kvs().iter().map(|kv| (text(kv.key()), text(kv.value()), kv.lease() != 0)).collect()
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Waits for etcd's log line that it serves clients. `false` if etcd ends before.
    fn try_start(&mut self) -> bool {
        let (client, peer) = (self.url(), format!("http://127.0.0.1:{}", self.peer_port));
        let tls = self.certificates.as_ref().map(Certificates::etcd_arguments).unwrap_or_default();
        let child = Command::new(&self.program)
            .env_clear()
            .env("PATH", "/usr/bin:/bin:/usr/local/bin")
            .arg("--data-dir")
            .arg(self.data_dir())
            .args(["--name", "test", "--unsafe-no-fsync", "--logger", "zap", "--log-outputs", "stderr"])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("test={peer}"), "--bcrypt-cost", "4"])
            .args(tls)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else { return false };
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        self.child = Some(ChildGuard(child));
        let serves = lines.by_ref().map_while(Result::ok).any(|line| line.contains("serving client traffic"));
        // The pipe must be drained: a full pipe would block etcd.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        if !serves {
            self.stop();
        }
        serves
    }
}

/// A permit to run a server. At most [`Slot::MAX`] servers of a process run at once: on a busy machine, more of them
/// miss their own election timeouts.
struct Slot;

static USED_SLOTS: Mutex<usize> = Mutex::new(0);
static SLOT_FREED: Condvar = Condvar::new();

impl Slot {
    const MAX: usize = 3;

    fn take() -> Slot {
        let used = USED_SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
        let freed = SLOT_FREED.wait_while(used, |used| *used >= Slot::MAX);
        *freed.unwrap_or_else(PoisonError::into_inner) += 1;
        Slot
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *USED_SLOTS.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        SLOT_FREED.notify_one();
    }
}

//! A real etcd of Debian, on loopback ports that are free, in a folder that goes with it.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions, PutOptions};
use podwire_subnets::{Etcd, EtcdOptions};
use tokio::sync::{Semaphore, SemaphorePermit};

/// A folder that is removed with this.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("podwire-etcd-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// So many servers run at a time: a machine that is busy otherwise, too, lets more of them starve.
static PLACES: Semaphore = Semaphore::const_new(3);

/// A running etcd.
pub struct Server {
    child: Option<Child>,
    _place: SemaphorePermit<'static>,
    pub url: String,
    arguments: Vec<String>,
    pub scratch: Scratch,
}

impl Server {
    pub async fn start() -> Server {
        Server::with("http", &[]).await
    }

    pub async fn with(scheme: &str, more: &[String]) -> Server {
        // Another program may take a port between here and there: then the next two are tried.
        for _ in 0..5 {
            let (scratch, port, peers) = (Scratch::new(), free_port(), free_port());
            let (url, peer_url) =
                (format!("{scheme}://127.0.0.1:{port}"), format!("http://127.0.0.1:{peers}"));
            let data = scratch.0.join("data").display().to_string();
            let mut arguments: Vec<String> = [
                ("name", "lone"),
                ("data-dir", &data),
                ("listen-client-urls", &url),
                ("advertise-client-urls", &url),
                ("listen-peer-urls", &peer_url),
                ("initial-advertise-peer-urls", &peer_url),
                ("initial-cluster", &format!("lone={peer_url}")),
                ("bcrypt-cost", "4"),
                ("logger", "zap"),
                ("log-outputs", "stderr"),
                ("log-level", "error"),
            ]
            .iter()
            .flat_map(|(key, value)| [format!("--{key}"), value.to_string()])
            .collect();
            arguments.push("--unsafe-no-fsync".into());
            arguments.extend_from_slice(more);
            let _place = PLACES.acquire().await.unwrap();
            let mut server = Server { child: None, _place, url, arguments, scratch };
            if server.run().await {
                return server;
            }
        }
        panic!("etcd does not start");
    }

    /// Starts it (again), on the same ports and the same data. `false` if it ended.
    pub async fn run(&mut self) -> bool {
        let child =
            Command::new("etcd").args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = self.child.insert(child.expect("etcd of the package etcd-server"));
        let port = self.url.rsplit(':').next().unwrap().parse().unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            // It listens once it has a leader.
            if tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("etcd does not listen after 60 s");
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.as_ref().expect("it runs").id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    pub fn data(&self) -> PathBuf {
        self.scratch.0.join("data")
    }

    pub fn options(&self) -> EtcdOptions {
        EtcdOptions { endpoints: vec![self.url.clone()], ..EtcdOptions::default() }
    }

    pub fn source(&self) -> Etcd {
        Etcd::new(self.options()).unwrap()
    }

    /// A client of the test's own, to write and read bytes.
    pub async fn client(&self) -> Client {
        Client::connect([&self.url], None::<ConnectOptions>).await.unwrap()
    }

    pub async fn put(&self, key: &str, value: &str) {
        self.client().await.put(key, value, None::<PutOptions>).await.unwrap();
    }

    pub async fn config(&self, text: &str) {
        self.put("/coreos.com/network/config", text).await;
    }

    /// All keys under a prefix, with their values and whether they have a lease.
    pub async fn dump(&self, prefix: &str) -> Vec<(String, String, bool)> {
        let options = etcd_client::GetOptions::new().with_prefix();
        let answer = self.client().await.get(prefix, Some(options)).await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        answer.kvs().iter().map(|kv| (text(kv.key()), text(kv.value()), kv.lease() != 0)).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Runs openssl in a folder.
pub fn openssl(folder: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .output()
        .expect("openssl");
    assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

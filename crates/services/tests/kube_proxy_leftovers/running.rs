//! A running kube-proxy is noticed by its port or its process, and nothing is removed beside it.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use podwire_services::kube_proxy::{self, find_running, refuse_running, Sign};

use crate::proxy::{create_nftables_mode, in_namespace, ruleset, sockets};

/// Answers like kube-proxy at its port, or like another server.
pub fn serve(addr: &str, response: &'static str) {
    let listener = TcpListener::bind(addr).unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.read(&mut [0; 1000]);
            let _ = stream.write_all(response.as_bytes());
        }
    });
}

/// A program with another name.
struct Fake(Child, PathBuf);

impl Fake {
    fn start(name: &str) -> Fake {
        let dir = std::env::temp_dir().join(format!(
            "podwire-fake-{}-{:?}",
            std::process::id(),
            thread::current().id()
        ));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::copy("/bin/sleep", dir.join(name)).unwrap();
        Fake(Command::new(dir.join(name)).arg("600").spawn().unwrap(), dir)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = std::fs::remove_dir_all(&self.1);
    }
}

/// A new process has its name a moment after its start.
fn wait_for(sign: impl Fn() -> Option<Sign>) -> Sign {
    let begin = Instant::now();
    loop {
        if let Some(sign) = sign() {
            return sign;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "no sign");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_kube_proxy_that_answers_is_refused() {
    for addr in ["127.0.0.1:10249", "[::1]:10249"] {
        in_namespace(|| {
            assert_eq!(find_running(), None);
            serve(addr, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\niptables");
            let error = refuse_running().unwrap_err().to_string();
            for part in ["kube-proxy runs on this node", addr, "\"iptables\"", "remove it from this node"] {
                assert!(error.contains(part), "{error}");
            }
            create_nftables_mode();
            let before = ruleset();
            let (mut nft, mut route) = sockets();
            let error = kube_proxy::remove(&mut nft, &mut route).unwrap_err().to_string();
            assert!(error.contains("kube-proxy runs"), "{error}");
            assert_eq!(ruleset(), before);
        });
    }
}

#[test]
fn another_server_at_its_port_is_not_kube_proxy() {
    for response in ["HTTP/1.1 404 Not Found\r\n\r\n", "SSH-2.0-OpenSSH\r\n", ""] {
        in_namespace(|| {
            serve("127.0.0.1:10249", response);
            assert_eq!(find_running(), None, "{response:?}");
        });
    }
}

#[test]
fn a_process_counts_in_its_own_network_namespace_only() {
    in_namespace(|| {
        let _other = Fake::start("kube-proxy2");
        let proxy = Fake::start("kube-proxy");
        let id = proxy.0.id();
        assert_eq!(wait_for(find_running), Sign::Process(id));
        let error = refuse_running().unwrap_err().to_string();
        assert!(error.contains(&format!("process {id} is called kube-proxy")), "{error}");
        in_namespace(|| assert_eq!(find_running(), None));
        drop(proxy);
        assert_eq!(find_running(), None);
    });
}

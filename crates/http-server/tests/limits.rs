//! Clients cannot stop the server: half-open and slow connections, on the node and from elsewhere. Each test has a
//! network namespace of its own, so it needs root.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use axum::routing::get;
use axum::Router;
use podwire_http_server::{serve, Connections, Listen, Routes, Server, CONNECTION_TIMEOUT};

const PORT: u16 = 8081;
/// Opens connections, sends half a request on each, says so, and waits until its standard input ends.
const HALF_OPEN: &str = r#"
import socket, sys
held = []
for _ in range(int(sys.argv[2])):
    s = socket.create_connection((sys.argv[1], 8081), timeout=10)
    s.sendall(b"GET /healthz HTTP/1.1\r\nHost: a")
    held.append(s)
print("open", flush=True)
sys.stdin.read()
"#;

/// Runs `test` beside a server in a fresh network namespace, with 192.0.2.1 and 2001:db8::1 as the node's addresses.
fn with_server(ip: Option<&str>, test: impl FnOnce()) {
    let ip: Option<IpAddr> = ip.map(|ip| ip.parse().unwrap());
    podwire_netlink::sys::new_network_namespace().unwrap();
    run("ip link set lo up && ip addr add 192.0.2.1/32 dev lo && ip addr add 2001:db8::1/128 dev lo nodad");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let (started, start) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        // A thread inherits the namespace of its parent.
        scope.spawn(move || {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(
                async move {
                    let remote = Router::new().route("/healthz", get(|| async { "ok\n" }));
                    let local = remote.clone().route("/status", get(|| async { "all\n" }));
                    started.send(serve(Listen { ip, port: PORT }, Routes { local, remote }).await).unwrap();
                    let _ = stopped.await;
                },
            );
        });
        start.recv().unwrap().unwrap();
        test();
        drop(stop);
    });
}

fn run(script: &str) {
    assert!(Command::new("sh").args(["-ec", script]).status().unwrap().success(), "{script}");
}

/// Opens half-open connections, and holds them until it is killed.
struct Flood(Child);

impl Flood {
    fn start(to: &str, count: u32) -> Flood {
        let script = format!("ulimit -n 8192 && exec python3 -c '{HALF_OPEN}' {to} {count}");
        let mut command = Command::new("sh");
        let mut child =
            command.args(["-ec", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "open\n", "the flood could not open {count} connections");
        Flood(child)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The status line of an answer, or the error.
fn ask(ip: &str, path: &str) -> Result<String, std::io::Error> {
    let address = SocketAddr::new(ip.parse().unwrap(), PORT);
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// The resident memory of this process in KiB.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn half_open_connections_stop_no_request_and_take_no_memory() {
    with_server(Some("0.0.0.0"), || {
        let before = memory();
        let _on_the_node = Flood::start("127.0.0.1", 1_100);
        let _from_elsewhere = Flood::start("192.0.2.1", 6_000);
        for ip in ["127.0.0.1", "192.0.2.1", "::1"] {
            assert_eq!(ask(ip, "/healthz").unwrap(), "HTTP/1.1 200 OK", "{ip}");
        }
        let grown = memory().saturating_sub(before);
        assert!(grown < 16 << 10, "the server grew by {grown} KiB");
    });
}

#[test]
fn connections_from_elsewhere_replace_none_of_the_node() {
    with_server(Some("192.0.2.1"), || {
        let mut slow = TcpStream::connect(("127.0.0.1", PORT)).unwrap();
        write!(slow, "GET /healthz HTTP/1.1\r\n").unwrap();
        let _from_elsewhere = Flood::start("192.0.2.1", 1_100);
        write!(slow, "Host: node\r\n\r\n").unwrap();
        let mut text = String::new();
        slow.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
    });
}

#[test]
fn a_slow_client_is_cut_off() {
    with_server(None, || {
        let begin = Instant::now();
        let mut slow = TcpStream::connect(("127.0.0.1", PORT)).unwrap();
        write!(slow, "GET /healthz HTTP/1.1\r\nHost: a").unwrap();
        slow.set_read_timeout(Some(3 * CONNECTION_TIMEOUT)).unwrap();
        // The end of the stream, or a reset: not a timeout.
        if let Err(error) = slow.read(&mut [0; 100]) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        }
        let took = begin.elapsed();
        assert!(took < 2 * CONNECTION_TIMEOUT, "the server waited {took:?}");
    });
}

#[test]
fn a_connection_carries_one_request() {
    with_server(None, || {
        let mut stream = TcpStream::connect(("127.0.0.1", PORT)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        let mut text = String::new();
        // The server resets the connection when it has not read the second request.
        let _ = stream.read_to_string(&mut text);
        assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 1, "{text}");
    });
}

#[test]
fn by_default_only_loopback_of_both_families_answers() {
    with_server(None, || {
        for ip in ["127.0.0.1", "::1"] {
            assert_eq!(ask(ip, "/status").unwrap(), "HTTP/1.1 200 OK", "{ip}");
        }
        for ip in ["192.0.2.1", "2001:db8::1"] {
            assert_eq!(
                ask(ip, "/healthz").unwrap_err().kind(),
                std::io::ErrorKind::ConnectionRefused,
                "{ip}"
            );
        }
    });
}

#[test]
fn a_chosen_address_is_added_to_loopback_and_has_no_status() {
    for (chosen, answering, silent) in [
        ("192.0.2.1", "192.0.2.1", Some("2001:db8::1")),
        ("2001:db8::1", "2001:db8::1", Some("192.0.2.1")),
        ("0.0.0.0", "192.0.2.1", Some("2001:db8::1")),
        ("::", "192.0.2.1", None),
        ("::", "2001:db8::1", None),
    ] {
        std::thread::spawn(move || {
            with_server(Some(chosen), || {
                for ip in ["127.0.0.1", "::1"] {
                    assert_eq!(ask(ip, "/status").unwrap(), "HTTP/1.1 200 OK", "{chosen}: {ip}");
                }
                assert_eq!(ask(answering, "/healthz").unwrap(), "HTTP/1.1 200 OK", "{chosen}: {answering}");
                assert_eq!(ask(answering, "/status").unwrap(), "HTTP/1.1 404 Not Found", "{chosen}");
                if let Some(ip) = silent {
                    assert!(ask(ip, "/healthz").is_err(), "{chosen}: {ip} answers");
                }
            });
        })
        .join()
        .unwrap();
    }
}

#[test]
fn a_node_without_ipv6_serves_ipv4() {
    std::thread::spawn(|| {
        podwire_netlink::sys::new_network_namespace().unwrap();
        run("ip link set lo up && ip -6 addr flush dev lo");
        let bound =
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
                let routes = Routes { local: Router::new(), remote: Router::new() };
                serve(Listen { ip: None, port: PORT }, routes).await
            });
        assert_eq!(bound.unwrap(), ["127.0.0.1:8081".parse().unwrap()]);
    })
    .join()
    .unwrap();
}

/// Runs `test` in a runtime and a fresh network namespace with 192.0.2.1 as the node's address.
fn in_runtime(test: impl FnOnce() + Send + 'static) {
    std::thread::spawn(|| {
        podwire_netlink::sys::new_network_namespace().unwrap();
        run("ip link set lo up && ip addr add 192.0.2.1/32 dev lo");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let answering = std::thread::spawn(move || runtime.block_on(stopped));
        let _runtime = handle.enter();
        test();
        drop(stop);
        let _ = answering.join().unwrap();
    })
    .join()
    .unwrap();
}

fn server(address: &str, connections: &Connections) -> std::io::Result<Server> {
    let routes = Routes::for_all(Router::new().fallback(|| async { "ok\n" }));
    Server::start(address.parse().unwrap(), routes, connections)
}

#[test]
fn a_dropped_server_frees_its_port_at_once() {
    in_runtime(|| {
        let connections = Connections::default();
        for _ in 0..100 {
            let one = server("192.0.2.1:8081", &connections).unwrap();
            assert_eq!(ask("192.0.2.1", "/any").unwrap(), "HTTP/1.1 200 OK");
            let second = server("192.0.2.1:8081", &connections).unwrap_err();
            assert_eq!(second.kind(), std::io::ErrorKind::AddrInUse);
            drop(one);
            assert_eq!(ask("192.0.2.1", "/any").unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
        }
    });
}

#[test]
fn a_server_answers_at_an_address_that_comes_later() {
    in_runtime(|| {
        let connections = Connections::default();
        let _servers = ["192.0.2.9:8081", "[2001:db8::9]:8081"].map(|at| server(at, &connections).unwrap());
        run("ip addr add 192.0.2.9/32 dev lo && ip addr add 2001:db8::9/128 dev lo nodad");
        for ip in ["192.0.2.9", "2001:db8::9"] {
            assert_eq!(ask(ip, "/").unwrap(), "HTTP/1.1 200 OK", "{ip}");
        }
    });
}

#[test]
fn servers_share_the_limit_of_connections() {
    in_runtime(|| {
        let connections = Connections::default();
        let _servers = ["192.0.2.1:8081", "192.0.2.1:8082"].map(|at| server(at, &connections).unwrap());
        let mut slow = TcpStream::connect(("192.0.2.1", 8082)).unwrap();
        slow.set_read_timeout(Some(CONNECTION_TIMEOUT / 2)).unwrap();
        write!(slow, "GET / HTTP/1.1\r\n").unwrap();
        let _flood = Flood::start("192.0.2.1", 200);
        // The end of the stream, or a reset, before the connection's own time is over.
        if let Err(error) = slow.read(&mut [0; 100]) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        }
        assert_eq!(ask("192.0.2.1", "/").unwrap(), "HTTP/1.1 200 OK");
    });
}

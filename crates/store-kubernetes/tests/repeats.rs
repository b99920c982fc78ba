//! Which requests are repeated. The server is a stand-in: a real one does not fail on demand.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use podwire_block_ipam::store::{Revision, Store, StoreError};
use podwire_store_kubernetes::{ApiGroup, KubernetesStore};
use serde_json::{json, Value};

const HANDLE: &str = "/calico/ipam/v2/handle/net.a";
const VALUE: &[u8] = br#"{"block":{"10.0.0.0/26":1},"deleted":false}"#;

/// Answers requests by method, one answer after the other. The last answer of a method is repeated.
struct StandIn {
    kubeconfig: PathBuf,
    methods: Arc<Mutex<Vec<String>>>,
}

type Answers = Vec<(&'static str, u16, Value)>;

impl StandIn {
    fn start(name: &str, answers: Answers) -> StandIn {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let kubeconfig =
            std::env::temp_dir().join(format!("podwire-repeats-{}-{name}.conf", std::process::id()));
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": url}}], "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        let methods = Arc::new(Mutex::new(Vec::new()));
        let (seen, answers) = (Arc::clone(&methods), Arc::new(Mutex::new(answers)));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (seen, answers) = (Arc::clone(&seen), Arc::clone(&answers));
                std::thread::spawn(move || serve(stream, &seen, &answers));
            }
        });
        StandIn { kubeconfig, methods }
    }

    fn store(&self) -> KubernetesStore {
        KubernetesStore::connect(Some(&self.kubeconfig), Some(ApiGroup::V1)).unwrap()
    }

    fn asked(&self) -> Vec<String> {
        self.methods.lock().unwrap().clone()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.kubeconfig);
    }
}

/// The requests of one connection, until it is closed.
fn serve(mut stream: TcpStream, seen: &Mutex<Vec<String>>, answers: &Mutex<Answers>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if line.trim().is_empty() {
                break;
            }
            lines.push(line.to_lowercase());
        }
        let length = lines.iter().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body).unwrap();
        let method = lines[0].split(' ').next().unwrap().to_uppercase();
        let (code, answer) = answer_to(&method, &mut answers.lock().unwrap());
        seen.lock().unwrap().push(method);
        let text = answer.to_string();
        let head = "content-type: application/json\r\nretry-after: 0";
        let _ = write!(stream, "HTTP/1.1 {code} x\r\n{head}\r\ncontent-length: {}\r\n\r\n{text}", text.len());
    }
}

fn answer_to(method: &str, answers: &mut Answers) -> (u16, Value) {
    let place = answers.iter().position(|(of, ..)| *of == method).expect("an answer");
    let is_last = answers.iter().filter(|(of, ..)| *of == method).count() == 1;
    let (_, code, answer) = if is_last { answers[place].clone() } else { answers.remove(place) };
    (code, answer)
}

fn object(version: &str) -> Value {
    json!({
        "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMHandle",
        "metadata": {"name": "net.a", "uid": "1", "resourceVersion": version},
        "spec": {"handleID": "net.a", "block": {}, "deleted": false},
    })
}

fn status(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": "test message"})
}

/// The first write may have been done. Then a second would fail, and its refusal would be mistaken for that of the
/// first.
#[test]
fn a_write_that_may_have_been_done_is_not_repeated() {
    let refusals = [
        (504, "Timeout"),
        (503, "ServiceUnavailable"),
        (500, "InternalError"),
        // Storage is full; a token has expired; a quota is exceeded.
        (507, "InsufficientStorage"),
        (401, "Unauthorized"),
        (403, "Forbidden"),
    ];
    for (code, reason) in refusals {
        let failure = (code, status(code, reason));
        let answers = vec![
            ("GET", 200, object("7")),
            ("PUT", failure.0, failure.1.clone()),
            ("PUT", 409, status(409, "Conflict")),
            ("POST", failure.0, failure.1.clone()),
            ("POST", 409, status(409, "AlreadyExists")),
        ];
        let server = StandIn::start(&code.to_string(), answers);
        let store = server.store();
        assert_eq!(store.get(HANDLE).unwrap().unwrap().revision, Revision(7));
        let error = store.update(HANDLE, VALUE, Revision(7)).unwrap_err();
        assert!(matches!(&error, StoreError::Unavailable { verb: "update", .. }), "{error}");
        assert!(
            error.to_string().ends_with(&format!("update ipamhandles/net.a: test message ({code})")),
            "{error}"
        );
        let error = store.create(HANDLE, VALUE).unwrap_err();
        assert!(matches!(&error, StoreError::Unavailable { verb: "create", .. }), "{error}");
        assert_eq!(server.asked(), ["GET", "PUT", "POST"]);
    }
}

#[test]
fn a_request_to_a_busy_server_is_repeated() {
    let busy = (429, status(429, "TooManyRequests"));
    let answers = vec![("GET", 200, object("7")), ("PUT", busy.0, busy.1.clone()), ("PUT", 200, object("8"))];
    let server = StandIn::start("busy", answers);
    let store = server.store();
    assert_eq!(store.update(HANDLE, VALUE, Revision(7)), Ok(Revision(8)), "read first, then written");
    assert_eq!(server.asked(), ["GET", "PUT", "PUT"]);
}

#[test]
fn a_version_that_is_not_a_number_is_reported() {
    let server = StandIn::start("odd", vec![("GET", 200, object("x7"))]);
    let error = server.store().get(HANDLE).unwrap_err().to_string();
    assert!(error.contains("its resourceVersion \"x7\" is not a number"), "{error}");
}

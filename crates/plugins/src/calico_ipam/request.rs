//! Requests about addresses and endpoints: to the node's agent over its socket, or, if the socket does not exist, to
//! the datastore through the program `podwire`.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use podwire_agent_ipc::addresses::{self, Response, SOCKET};
use podwire_agent_ipc::client::{self, Connection};
use podwire_agent_ipc::Owner;
use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::{code, json};
use serde_json::Value;

use crate::podwire_program::{self, PROGRAM};

/// For an agent that hangs. The agent itself limits the time of an ADD.
const TIMEOUT: Duration = Duration::from_secs(25);

/// Sends a request and waits for the response. A failure becomes a CNI error.
pub(crate) fn call(req: &Request<'_>, question: addresses::Request) -> Result<Response> {
    begin(req, question)?.wait(req)
}

/// Sends a request without waiting for the response. Without an agent, the program runs only when the response is
/// needed.
pub(crate) fn begin(req: &Request<'_>, question: addresses::Request) -> Result<Pending> {
    let socket = socket(req);
    match client::send(&socket, &question, TIMEOUT) {
        // No agent has created the socket since boot: there is none on this node.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Pending::ForProgram(Box::new(question))),
        Err(error) => Err(unreachable(&socket, &error)),
        Ok(sent) => Ok(Pending::OnNewConnection(sent)),
    }
}

/// The same over a connection that the agent has kept open. Agents of earlier versions close it, then a new one is
/// made.
pub(crate) fn begin_on(
    req: &Request<'_>,
    connection: Option<Connection>,
    question: addresses::Request,
) -> Result<Pending> {
    match connection.map(|connection| connection.send(&question)) {
        Some(Ok(sent)) => Ok(Pending::OnOpenConnection(sent, Box::new(question))),
        _ => begin(req, question),
    }
}

/// A request whose response is not read yet.
pub(crate) enum Pending {
    /// Sent to the agent over a new connection.
    OnNewConnection(client::Sent<Response>),
    /// Sent to the agent over an earlier connection, which the agent may have closed.
    OnOpenConnection(client::Sent<Response>, Box<addresses::Request>),
    /// Not sent yet: there is no agent.
    ForProgram(Box<addresses::Request>),
}

impl Pending {
    /// Waits for the response. A failure becomes a CNI error.
    pub(crate) fn wait(self, req: &Request<'_>) -> Result<Response> {
        self.wait_and_keep(req).map(|(answer, _)| answer)
    }

    /// The same, and returns the connection for further requests, if there is one.
    pub(crate) fn wait_and_keep(self, req: &Request<'_>) -> Result<(Response, Option<Connection>)> {
        let received = |answer: std::io::Result<(Response, Connection)>| match answer {
            Ok((answer, connection)) => Ok((answer, Some(connection))),
            Err(error) => Err(unreachable(&socket(req), &error)),
        };
        let (answer, connection) = match self {
            Pending::ForProgram(question) => (run_program(req, &question)?, None),
            Pending::OnNewConnection(sent) => received(sent.response_and_connection())?,
            Pending::OnOpenConnection(sent, question) => match sent.response_and_connection() {
                // The agent closed the connection before it read the request.
                Err(error) if is_closed(&error) => return begin(req, *question)?.wait_and_keep(req),
                answer => received(answer)?,
            },
        };
        match answer {
            Response::Failed { code, msg, hint } => {
                Err(podwire_cni_spec::Error::new(code, msg).with_details(hint).into())
            }
            answer => Ok((answer, connection)),
        }
    }

    /// Waits until the agent has handled the request, and ignores its response. Returns whether the request was sent.
    pub(crate) fn discard(self) -> bool {
        match self {
            Pending::OnNewConnection(sent) | Pending::OnOpenConnection(sent, _) => {
                let _ = sent.response();
                true
            }
            Pending::ForProgram(_) => false,
        }
    }
}

/// The owner of the request's attachment.
pub(crate) fn owner(req: &Request<'_>) -> Owner {
    let (container, ifname) = (req.container.clone(), req.ifname.clone());
    Owner { network: req.network.to_string(), container, ifname }
}

/// The error for a response of the wrong kind.
pub(crate) fn unexpected(answer: &Response) -> podwire_cni_plugin::Error {
    let text = format!("the agent sent an unexpected response: {answer:?}");
    let hint = "install the plugins and the agent of one version";
    podwire_cni_spec::Error::internal(text).with_details(hint).into()
}

fn is_closed(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

fn socket(req: &Request<'_>) -> PathBuf {
    let ipam = json::get(&req.config, "ipam");
    let path = ipam.and_then(|ipam| json::get(ipam, "agent_socket")).and_then(Value::as_str);
    PathBuf::from(path.filter(|path| !path.is_empty()).unwrap_or(SOCKET))
}

fn unreachable(socket: &Path, error: &std::io::Error) -> podwire_cni_plugin::Error {
    let text = format!("ask this node's agent for addresses at {}: {error}", socket.display());
    let hint = "check that `podwire agent calico` or `podwire ipam serve` runs; if this node no longer has an agent, \
                remove the socket, and the plugin accesses the datastore itself";
    podwire_cni_spec::Error::new(code::TRY_AGAIN, text).with_details(hint).into()
}

/// Runs `podwire ipam answer`, which accesses the datastore of the config.
fn run_program(req: &Request<'_>, question: &addresses::Request) -> Result<Response> {
    let program = podwire_program::find(&req.path).ok_or_else(|| {
        let text = format!(
            "no agent owns this node's blocks ({SOCKET} does not exist), and the program {PROGRAM} is not found"
        );
        let hint = "start `podwire agent calico` or `podwire ipam serve`; or install `podwire` beside the plugins or \
                    in PATH";
        podwire_cni_plugin::Error::from(
            podwire_cni_spec::Error::new(code::TRY_AGAIN, text).with_details(hint),
        )
    })?;
    let failed = |what: String| {
        let text = format!("access the datastore with {}: {what}", program.display());
        podwire_cni_plugin::Error::from(podwire_cni_spec::Error::new(code::TRY_AGAIN, text))
    };
    let input = serde_json::json!({ "request": question, "config": *req.config });
    let run = || -> std::io::Result<std::process::Output> {
        let mut child = Command::new(&program)
            .args(["ipam", "answer"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that exits without reading reports why on standard error.
            let _ = stdin.write_all(input.to_string().as_bytes());
        }
        child.wait_with_output()
    };
    let output = run().map_err(|error| failed(error.to_string()))?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        failed(format!("{}, standard error {:?}", output.status, stderr.trim()))
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    use podwire_cni_plugin::{Command, Plugin, Registry, Source};

    use super::*;
    use crate::calico_ipam::CalicoIpam;

    /// An agent of an earlier version: it closes the connection after each response.
    fn close_after_each_response(path: &Path, calls: usize) -> std::thread::JoinHandle<Vec<String>> {
        let listener = UnixListener::bind(path).unwrap();
        std::thread::spawn(move || {
            let respond = |_| {
                let (stream, _) = listener.accept().unwrap();
                let mut question = String::new();
                BufReader::new(&stream).read_line(&mut question).unwrap();
                (&stream).write_all(b"{\"response\":\"done\"}\n").unwrap();
                question
            };
            (0..calls).map(respond).collect()
        })
    }

    #[test]
    fn a_closed_connection_is_replaced() {
        let socket = std::env::temp_dir().join(format!("podwire-request-{}", std::process::id()));
        let agent = close_after_each_response(&socket, 2);
        let config = serde_json::json!({
            "cniVersion": "1.0.0", "name": "net", "ipam": { "type": "calico-ipam", "agent_socket": socket }
        });
        let req = Request::new(Command::Gc, &Default::default(), config, Registry::none()).unwrap();
        let (answer, connection) =
            begin(&req, addresses::Request::Ping).unwrap().wait_and_keep(&req).unwrap();
        assert_eq!(answer, Response::Done);
        assert!(connection.is_some());
        let again = begin_on(&req, connection, addresses::Request::PodCidrs { node: None }).unwrap();
        assert_eq!(again.wait(&req).unwrap(), Response::Done);
        let questions = agent.join().unwrap();
        assert!(questions[0].contains("ping") && questions[1].contains("podCidrs"), "{questions:?}");
        std::fs::remove_file(&socket).unwrap();
    }

    /// As host-local: ADD is to be tried again, and STATUS says that pods cannot be attached.
    #[test]
    fn without_addresses_add_fails_with_11_and_status_with_50() {
        for (number, reason) in
            ["no configured Calico pools for node n1", "No Free Blocks"].iter().enumerate()
        {
            let name = format!("podwire-shortage-{number}-{}", std::process::id());
            let socket = std::env::temp_dir().join(name);
            let (msg, hint) = (reason.to_string(), "add a pool".to_owned());
            podwire_agent_ipc::server::serve(&socket, move |_: std::io::Result<addresses::Request>| {
                Response::Failed { code: code::TRY_AGAIN, msg: msg.clone(), hint: hint.clone() }
            })
            .unwrap();
            let config = serde_json::json!({
                "cniVersion": "1.1.0", "name": "net", "ipam": { "type": "calico-ipam", "agent_socket": socket }
            });
            let source = Source { container: "c1".into(), ifname: "eth0".into(), ..Source::default() };
            let request = |command| Request::new(command, &source, config.clone(), Registry::none()).unwrap();
            let added = CalicoIpam.add(&request(Command::Add)).unwrap_err().to_cni();
            let status = CalicoIpam.status(&request(Command::Status)).unwrap_err().to_cni();
            assert_eq!((added.code, added.msg.as_str()), (11, *reason));
            assert_eq!((status.code, status.msg.as_str()), (50, *reason));
            assert_eq!(status.details, "add a pool");
            std::fs::remove_file(&socket).unwrap();
        }
    }
}

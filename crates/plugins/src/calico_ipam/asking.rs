//! Whom to ask: the agent at its door, or, if there never was one, the datastore by the tool.

use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use podwire_agent_ipc::addresses::{self, Response, SOCKET};
use podwire_agent_ipc::client::{self, Connection};
use podwire_cni_plugin::{Request, Result};
use podwire_cni_spec::{code, json};
use serde_json::Value;

/// The agent keeps the time of an ADD itself; this is for one that stands still.
const ASKING: Duration = Duration::from_secs(25);

/// The tool's name.
const TOOL: &str = "podwire";

/// Asks, and makes a CNI error of a no.
pub(crate) fn ask(req: &Request<'_>, question: addresses::Request) -> Result<Response> {
    begin(req, question)?.answer(req)
}

/// Asks, and goes on with something else until the answer is needed. Where there is no agent, the tool is asked only then.
pub(crate) fn begin(req: &Request<'_>, question: addresses::Request) -> Result<Asked> {
    let door = door(req);
    match client::send(&door, &question, ASKING) {
        // Nobody ever opened that door since the machine was started: there is no agent here.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Asked::ByTool(Box::new(question))),
        Err(error) => Err(silent(&door, &error)),
        Ok(asked) => Ok(Asked::AtTheDoor(asked)),
    }
}

/// The same of somebody who has just answered, if he stayed on the line. An agent of an earlier version does not: he is called anew.
pub(crate) fn begin_on(
    req: &Request<'_>,
    line: Option<Connection>,
    question: addresses::Request,
) -> Result<Asked> {
    match line.map(|line| line.send(&question)) {
        Some(Ok(asked)) => Ok(Asked::OnTheLine(asked, Box::new(question))),
        _ => begin(req, question),
    }
}

/// A question whose answer was not heard yet.
pub(crate) enum Asked {
    AtTheDoor(client::Sent<Response>),
    OnTheLine(client::Sent<Response>, Box<addresses::Request>),
    ByTool(Box<addresses::Request>),
}

impl Asked {
    /// The answer, or a CNI error of a no.
    pub(crate) fn answer(self, req: &Request<'_>) -> Result<Response> {
        self.answer_and_stay(req).map(|(answer, _)| answer)
    }

    /// The same, and the line on which more can be asked, if there is one.
    pub(crate) fn answer_and_stay(self, req: &Request<'_>) -> Result<(Response, Option<Connection>)> {
        let heard = |answer: std::io::Result<(Response, Connection)>| match answer {
            Ok((answer, line)) => Ok((answer, Some(line))),
            Err(error) => Err(silent(&door(req), &error)),
        };
        let (answer, line) = match self {
            Asked::ByTool(question) => (by_tool(req, &question)?, None),
            Asked::AtTheDoor(asked) => heard(asked.response_and_connection())?,
            Asked::OnTheLine(asked, question) => match asked.response_and_connection() {
                // He has hung up before he heard it.
                Err(error) if has_hung_up(&error) => return begin(req, *question)?.answer_and_stay(req),
                answer => heard(answer)?,
            },
        };
        match answer {
            Response::Failed { code, msg, hint } => {
                Err(podwire_cni_spec::Error::new(code, msg).with_details(hint).into())
            }
            answer => Ok((answer, line)),
        }
    }

    /// Waits until it was heard, whatever is answered. Whether anybody was asked: the tool was not yet, and is not.
    pub(crate) fn settle(self) -> bool {
        match self {
            Asked::AtTheDoor(asked) | Asked::OnTheLine(asked, _) => {
                let _ = asked.response();
                true
            }
            Asked::ByTool(_) => false,
        }
    }
}

fn has_hung_up(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

fn door(req: &Request<'_>) -> PathBuf {
    let ipam = json::get(&req.config, "ipam");
    let path = ipam.and_then(|ipam| json::get(ipam, "agent_socket")).and_then(Value::as_str);
    PathBuf::from(path.filter(|path| !path.is_empty()).unwrap_or(SOCKET))
}

fn silent(door: &Path, error: &std::io::Error) -> podwire_cni_plugin::Error {
    let text = format!("ask this node's agent for addresses at {}: {error}", door.display());
    let hint =
        "see that `podwire agent calico` or `podwire ipam serve` runs; if neither is to run here any more, remove the \
                socket, and the plugin goes to the datastore itself";
    podwire_cni_spec::Error::new(code::TRY_AGAIN, text).with_details(hint).into()
}

/// Lets `podwire ipam answer` ask the datastore of the config.
fn by_tool(req: &Request<'_>, question: &addresses::Request) -> Result<Response> {
    let tool = find_tool(&req.path).ok_or_else(|| {
        let text = format!(
            "no agent owns this node's blocks ({SOCKET} is not there), and the program {TOOL} is not found"
        );
        let hint =
            "start `podwire agent calico` or `podwire ipam serve`; or put `podwire` beside the plugins or into PATH";
        podwire_cni_plugin::Error::from(
            podwire_cni_spec::Error::new(code::TRY_AGAIN, text).with_details(hint),
        )
    })?;
    let failed = |what: String| {
        let text = format!("ask the datastore by {}: {what}", tool.display());
        podwire_cni_plugin::Error::from(podwire_cni_spec::Error::new(code::TRY_AGAIN, text))
    };
    let said = serde_json::json!({ "request": question, "config": *req.config });
    let run = || -> std::io::Result<std::process::Output> {
        let mut child = Command::new(&tool)
            .args(["ipam", "answer"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that ends without listening says why.
            let _ = stdin.write_all(said.to_string().as_bytes());
        }
        child.wait_with_output()
    };
    let output = run().map_err(|error| failed(error.to_string()))?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let words = String::from_utf8_lossy(&output.stderr);
        failed(format!("it ended with {} and said {:?}", output.status, words.trim()))
    })
}

/// Beside the plugins or their folder, or where programs are.
fn find_tool(plugins: &[PathBuf]) -> Option<PathBuf> {
    let own = std::env::current_exe().unwrap_or_default();
    let own = own.ancestors().skip(1).take(2).map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/bin", "/usr/bin"].map(PathBuf::from);
    let folders = own.chain(plugins.iter().cloned()).chain(std::env::split_paths(&path)).chain(usual);
    folders.map(|folder| folder.join(OsStr::new(TOOL))).find(|tool| tool.is_file())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    use podwire_cni_plugin::{Command, Registry};

    use super::*;

    /// An agent of an earlier version: he answers once, and hangs up.
    fn hang_up_after_each(path: &Path, calls: usize) -> std::thread::JoinHandle<Vec<String>> {
        let listener = UnixListener::bind(path).unwrap();
        std::thread::spawn(move || {
            let answer = |_| {
                let (stream, _) = listener.accept().unwrap();
                let mut question = String::new();
                BufReader::new(&stream).read_line(&mut question).unwrap();
                (&stream).write_all(b"{\"response\":\"done\"}\n").unwrap();
                question
            };
            (0..calls).map(answer).collect()
        })
    }

    #[test]
    fn who_has_hung_up_is_called_anew() {
        let door = std::env::temp_dir().join(format!("podwire-asking-{}", std::process::id()));
        let agent = hang_up_after_each(&door, 2);
        let config = serde_json::json!({
            "cniVersion": "1.0.0", "name": "net", "ipam": { "type": "calico-ipam", "agent_socket": door }
        });
        let req = Request::new(Command::Gc, &Default::default(), config, Registry::none()).unwrap();
        let (answer, line) = begin(&req, addresses::Request::Ping).unwrap().answer_and_stay(&req).unwrap();
        assert_eq!(answer, Response::Done);
        assert!(line.is_some());
        let again = begin_on(&req, line, addresses::Request::PodCidrs { node: None }).unwrap();
        assert_eq!(again.answer(&req).unwrap(), Response::Done);
        let questions = agent.join().unwrap();
        assert!(questions[0].contains("ping") && questions[1].contains("podCidrs"), "{questions:?}");
        std::fs::remove_file(&door).unwrap();
    }
}

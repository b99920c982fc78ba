//! The server side of the plugins' policy socket.

use std::path::Path;
use std::time::Duration;

use podwire_agent_ipc::policy::{Request, Response};
use podwire_fs::FileError;

use crate::{PolicyAgent, Result};

/// Serves the plugins' requests at `path` for as long as the process runs.
pub fn serve(path: &Path, agent: PolicyAgent) -> Result<()> {
    let respond = move |request: std::io::Result<Request>| match request {
        Ok(request) => handle(request, &agent),
        Err(error) => not_enforced(error),
    };
    Ok(podwire_agent_ipc::server::serve(path, respond).map_err(FileError::at("serve", path))?)
}

fn handle(request: Request, agent: &PolicyAgent) -> Response {
    match request {
        Request::Detach { owner } => match agent.detach(owner) {
            Ok(()) => Response { enforced: true, reason: String::new() },
            Err(error) => not_enforced(error),
        },
        Request::Attach { interface, timeout_ms } => {
            let pod = interface.pod_name();
            let response = match agent.attach(*interface) {
                Ok(response) => response,
                Err(error) => return not_enforced(error),
            };
            let timeout = Duration::from_millis(timeout_ms);
            response.recv_timeout(timeout).unwrap_or_else(|_| not_enforced(reason(&pod, agent)))
        }
    }
}

/// Why the policies of the pod were not enforced in time.
fn reason(pod: &str, agent: &PolicyAgent) -> String {
    let status = agent.status();
    if let Some(problem) = status.problem {
        problem
    } else if status.enforced {
        format!("the policy source does not list pod {pod} yet")
    } else {
        "the policy source has not listed all objects yet".into()
    }
}

fn not_enforced(reason: impl ToString) -> Response {
    Response { enforced: false, reason: reason.to_string() }
}

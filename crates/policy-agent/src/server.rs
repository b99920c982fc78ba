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
            Ok(()) => Response { enforced: true, ..Response::default() },
            Err(error) => not_enforced(error),
        },
        Request::Objects { after } => match agent.objects(after) {
            Ok(response) => response.recv().unwrap_or_else(|_| not_enforced("the policy thread ended")),
            Err(error) => not_enforced(error),
        },
        Request::Attach { interface, timeout_ms } => {
            let pod = interface.pod_name();
            let timeout = Duration::from_millis(timeout_ms);
            let response = match agent.attach(*interface, timeout) {
                Ok(response) => response,
                Err(error) => return not_enforced(error),
            };
            response.recv_timeout(timeout).unwrap_or_else(|_| not_enforced(reason(&pod, agent, timeout)))
        }
    }
}

/// Why the policies of the pod were not enforced in time.
fn reason(pod: &str, agent: &PolicyAgent, timeout: Duration) -> String {
    let status = agent.status();
    if let Some(problem) = status.problem {
        problem
    } else if !status.enforced {
        "the policy source has not listed all objects yet".into()
    } else if agent.lists_pods() {
        format!("the policy source does not list pod {pod} yet")
    } else {
        let seconds = timeout.as_secs_f32();
        format!("the agent is still busy with earlier changes after {seconds} s")
    }
}

fn not_enforced(reason: impl ToString) -> Response {
    Response { reason: reason.to_string(), ..Response::default() }
}

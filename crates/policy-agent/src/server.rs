//! The door at which plugins knock.

use std::path::Path;
use std::time::Duration;

use podwire_agent_ipc::policy::{Request, Response};

use crate::{Error, PolicyAgent, Result};

/// Opens the door, and answers at it for as long as the program lives.
pub fn open(path: &Path, agent: PolicyAgent) -> Result<()> {
    let answer = move |knock: std::io::Result<Request>| match knock {
        Ok(knock) => hear(knock, &agent),
        Err(error) => Response { enforced: false, reason: error.to_string() },
    };
    podwire_agent_ipc::server::serve(path, answer).map_err(Error::file("answer at", path))
}

fn hear(knock: Request, agent: &PolicyAgent) -> Response {
    let no = |reason: String| Response { enforced: false, reason };
    match knock {
        Request::Detach { owner } => match agent.detach(owner) {
            Ok(()) => Response { enforced: true, reason: String::new() },
            Err(error) => no(error.to_string()),
        },
        Request::Attach { interface, timeout_ms } => {
            let pod = interface.pod_name();
            let answer = match agent.attach(interface) {
                Ok(answer) => answer,
                Err(error) => return no(error.to_string()),
            };
            answer.recv_timeout(Duration::from_millis(timeout_ms)).unwrap_or_else(|_| {
                let state = agent.status();
                no(match (state.problem, state.enforced) {
                    (Some(problem), _) => problem,
                    (None, false) => "the source of policies has not told everything yet".into(),
                    (None, true) => format!("the source of policies does not know pod {pod} yet"),
                })
            })
        }
    }
}

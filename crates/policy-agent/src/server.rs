//! The door at which plugins knock.

use std::path::Path;
use std::time::Duration;

use podwire_cni_plugin::policy::{Answer, Knock};

use crate::{Error, PolicyAgent, Result};

/// Opens the door, and answers at it for as long as the program lives.
pub fn open(path: &Path, agent: PolicyAgent) -> Result<()> {
    let answer = move |knock: std::io::Result<Knock>| match knock {
        Ok(knock) => hear(knock, &agent),
        Err(error) => Answer { enforced: false, why: error.to_string() },
    };
    podwire_agent_ipc::door::open(path, answer).map_err(Error::file("answer at", path))
}

fn hear(knock: Knock, agent: &PolicyAgent) -> Answer {
    let no = |why: String| Answer { enforced: false, why };
    match knock {
        Knock::Detach { interface } => match agent.detach(interface) {
            Ok(()) => Answer { enforced: true, why: String::new() },
            Err(error) => no(error.to_string()),
        },
        Knock::Attach { interface, patience } => {
            let pod = interface.full_name();
            let answer = match agent.attach(interface) {
                Ok(answer) => answer,
                Err(error) => return no(error.to_string()),
            };
            answer.recv_timeout(Duration::from_millis(patience)).unwrap_or_else(|_| {
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

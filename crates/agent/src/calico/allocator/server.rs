//! The door at which the plugins ask.

use std::path::Path;
use std::time::Duration;

use podwire_agent_ipc::addresses::{Request, Response};
use tracing::info;

use crate::{Error, Steward};

/// Opens the door, and answers at it for as long as the program lives.
pub fn open(path: &Path, steward: Steward) -> Result<(), Error> {
    let answer = move |question: std::io::Result<Request>| match question {
        Ok(question) => answer(&steward, question),
        Err(error) => failed(&Error::Wish(error.to_string())),
    };
    podwire_agent_ipc::server::serve(path, answer).map_err(Error::file("answer at", path))?;
    info!(socket = %path.display(), "plugins may ask for addresses");
    Ok(())
}

/// What a question is answered with.
pub(crate) fn answer(steward: &Steward, question: Request) -> Response {
    let done = match question {
        Request::Pod { .. } | Request::PodCidrs { .. } => return steward.about_cluster(&question),
        Request::Publish { endpoint } => steward.publish(&endpoint),
        Request::Join { endpoint } => match steward.join(&endpoint) {
            Ok(endpoint) => return Response::Joined { endpoint: endpoint.map(Box::new) },
            Err(error) => Err(error),
        },
        Request::Withdraw { endpoint } => steward.withdraw(&endpoint),
        Request::Assign { owner, addresses: wish, timeout_ms: patience } => {
            match steward.assign(&owner, &wish, Duration::from_millis(patience)) {
                Ok(addresses) => return Response::Assigned { addresses },
                Err(error) => Err(error),
            }
        }
        Request::Inspect { owner } => {
            let addresses = steward.lease(&owner).map(|lease| lease.addresses).unwrap_or_default();
            return Response::Assigned { addresses };
        }
        Request::Release { owner, legacy_handle: legacy } => steward.release(&owner, legacy.as_deref()),
        Request::Collect { network, valid } => steward.collect(&network, &valid),
        Request::Ping => steward.is_ready(),
    };
    match done {
        Ok(()) => Response::Done,
        Err(error) => failed(&error),
    }
}

pub(crate) fn failed(error: &Error) -> Response {
    Response::Failed { code: error.code(), msg: error.to_string(), hint: error.hint().into() }
}

//! The door at which the plugins ask.

use std::path::Path;
use std::time::Duration;

use podwire_agent_ipc::blocks::{Answer, Question};
use tracing::info;

use crate::{Error, Steward};

/// Opens the door, and answers at it for as long as the program lives.
pub fn open(path: &Path, steward: Steward) -> Result<(), Error> {
    let answer = move |question: std::io::Result<Question>| match question {
        Ok(question) => answer(&steward, question),
        Err(error) => failed(&Error::Wish(error.to_string())),
    };
    podwire_agent_ipc::door::open(path, answer).map_err(Error::file("answer at", path))?;
    info!(socket = %path.display(), "plugins may ask for addresses");
    Ok(())
}

/// What a question is answered with.
pub(crate) fn answer(steward: &Steward, question: Question) -> Answer {
    let done = match question {
        Question::Pod { .. } | Question::Ranges { .. } => return steward.about_cluster(&question),
        Question::Publish { endpoint } => steward.publish(&endpoint),
        Question::Join { endpoint } => match steward.join(&endpoint) {
            Ok(endpoint) => return Answer::Joined { endpoint: endpoint.map(Box::new) },
            Err(error) => Err(error),
        },
        Question::Withdraw { endpoint } => steward.withdraw(&endpoint),
        Question::Assign { owner, wish, patience } => {
            match steward.assign(&owner, &wish, Duration::from_millis(patience)) {
                Ok(addresses) => return Answer::Given { addresses },
                Err(error) => Err(error),
            }
        }
        Question::Inspect { owner } => {
            let addresses = steward.lease(&owner).map(|lease| lease.addresses).unwrap_or_default();
            return Answer::Given { addresses };
        }
        Question::Release { owner, legacy } => steward.release(&owner, legacy.as_deref()),
        Question::Collect { network, valid } => steward.collect(&network, &valid),
        Question::Ping => steward.is_ready(),
    };
    match done {
        Ok(()) => Answer::Done,
        Err(error) => failed(&error),
    }
}

pub(crate) fn failed(error: &Error) -> Answer {
    Answer::Failed { code: error.code(), msg: error.to_string(), hint: error.hint().into() }
}

//! Services from a directory of YAML and JSON files.

use std::path::Path;

use podwire_policy_agent::PolicyFiles;
use podwire_services::{Kind, ServicesAgent, Update};
use serde_json::Value;
use tracing::{error, info};

use crate::{Error, Result};

/// Sends all objects, and again after every change. If a file is invalid, the last valid objects stay.
pub(super) async fn watch(directory: &Path, agent: &ServicesAgent) -> Result<()> {
    let files = PolicyFiles::new(directory);
    let followed = files
        .follow(|| {
            match files.documents() {
                Ok(documents) => {
                    info!(directory = %directory.display(), documents = documents.len(), "files of Services read");
                    send(documents, agent)?;
                }
                Err(error) => error!(%error, "invalid files; the last valid Services stay in the kernel"),
            }
            Ok(())
        })
        .await;
    followed.map_err(|error| match error {
        Error::Policies(source) => Error::ServiceFiles(source),
        other => other,
    })
}

/// All objects in the files of a directory.
pub(super) fn objects(directory: &Path) -> Result<Vec<Value>> {
    let documents = PolicyFiles::new(directory).documents().map_err(Error::ServiceFiles)?;
    Ok(documents.into_iter().flat_map(items).collect())
}

fn send(documents: Vec<Value>, agent: &ServicesAgent) -> Result<()> {
    let documents: Vec<Value> = documents.into_iter().flat_map(items).collect();
    for kind in Kind::ALL {
        let of_kind = documents.iter().filter(|document| Kind::of(document) == Some(kind));
        agent.update(Update::Listed(kind, of_kind.cloned().collect()))?;
    }
    Ok(())
}

/// A list is taken apart: its items may be of several kinds.
fn items(document: Value) -> Vec<Value> {
    match document["items"].as_array() {
        Some(items) if document["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) => items.clone(),
        _ => vec![document],
    }
}

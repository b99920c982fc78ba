//! The objects of a source, read once: for commands that explain what the agent does with them.

use podwire_policy_agent::Source;
use serde_json::Value;

use super::{files, kubernetes};
use crate::Result;

/// All objects that the Services of a node depend on.
pub async fn service_objects(source: &Source, node: &str) -> Result<Vec<Value>> {
    match source {
        Source::Files(directory) => files::objects(directory),
        Source::Kubernetes(options) => kubernetes::list(options, node).await,
    }
}

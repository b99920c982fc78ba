//! Policy sources: the Kubernetes API, or a directory of files.

mod files;
mod kubernetes;

pub use files::{timestamp, yaml_documents, PolicyFiles};

use crate::{Error, PolicyAgent, Result};

/// Where policies and pods come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A directory of YAML and JSON files.
    Files(std::path::PathBuf),
    /// The Kubernetes API.
    Kubernetes(podwire_kubernetes::ClientOptions),
}

impl Source {
    /// Parses the value of a flag such as `--policy`: `kubernetes` or `files:DIRECTORY`.
    pub fn parse(
        flag: &'static str,
        text: &str,
        kubernetes: impl FnOnce() -> podwire_kubernetes::ClientOptions,
    ) -> Result<Source> {
        match text.split_once(':') {
            Some(("files", directory)) if !directory.is_empty() => Ok(Source::Files(directory.into())),
            None if text == "kubernetes" => Ok(Source::Kubernetes(kubernetes())),
            _ => {
                let reason = format!("{text:?} is not a source: write kubernetes or files:DIRECTORY");
                Err(Error::Config { flag, reason })
            }
        }
    }

    /// Sends the source's objects and their changes to the policy agent. Returns only on an error.
    pub async fn watch(self, agent: PolicyAgent) -> Result<()> {
        match self {
            Source::Files(directory) => PolicyFiles::new(directory).watch(&agent).await,
            Source::Kubernetes(options) => kubernetes::watch(&options, &agent).await,
        }
    }

    /// Whether the source lists every pod of this node. Policy files need not.
    pub fn lists_pods(&self) -> bool {
        matches!(self, Source::Kubernetes(_))
    }
}

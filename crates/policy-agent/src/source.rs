//! Where policies and pods are known.

mod files;
mod kubernetes;

pub use files::{timestamp, yaml_documents, PolicyFiles};

use crate::{Error, PolicyAgent, Result};

/// Where policies and pods are known.
#[derive(Clone, Debug)]
pub enum Source {
    /// A folder of YAML and JSON files.
    Files(std::path::PathBuf),
    /// The Kubernetes API.
    Kubernetes(podwire_kubernetes::ClientOptions),
}

impl Source {
    /// A source as flags write it: `kubernetes`, or `files:FOLDER`.
    pub fn parse(
        written: &str,
        kubernetes: impl FnOnce() -> podwire_kubernetes::ClientOptions,
    ) -> Result<Source> {
        match written.split_once(':') {
            Some(("files", folder)) if !folder.is_empty() => Ok(Source::Files(folder.into())),
            None if written == "kubernetes" => Ok(Source::Kubernetes(kubernetes())),
            _ => {
                let why = format!("{written:?} is no source of policies: write kubernetes or files:FOLDER");
                Err(Error::Config { flag: "--policy", why })
            }
        }
    }

    /// Tells the agent all that it learns, for ever.
    pub async fn watch(self, agent: PolicyAgent) -> Result<()> {
        match self {
            Source::Files(folder) => PolicyFiles::new(folder).watch(&agent).await,
            Source::Kubernetes(options) => kubernetes::watch(&options, &agent).await,
        }
    }

    /// Whether all pods of this node must be known to the source before they may speak. In files nobody lists them.
    pub fn lists_pods(&self) -> bool {
        matches!(self, Source::Kubernetes(_))
    }
}

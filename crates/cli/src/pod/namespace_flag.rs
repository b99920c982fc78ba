//! The flag for the Kubernetes namespace of pods.

use clap::Args;
use podwire_sandbox::PodName;

use crate::failure::Failure;

#[derive(Debug, Args)]
pub(super) struct NamespaceFlag {
    /// Kubernetes namespace of pods that are named without one (NAMESPACE/NAME).
    #[arg(long, short, value_name = "NAMESPACE", default_value = "default")]
    namespace: String,
}

impl NamespaceFlag {
    /// The pod that a command names.
    pub(super) fn pod(&self, name: &str) -> Result<PodName, Failure> {
        PodName::parse(name, &self.namespace).map_err(Failure::context(format!("{name:?} is not a pod name")))
    }
}

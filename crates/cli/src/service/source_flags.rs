//! The flags for the source of the agent, which knows why endpoints are left out.

use std::path::PathBuf;

use clap::Args;
use podwire_agent::service_objects;
use podwire_kubernetes::ClientOptions;
use podwire_policy_agent::Source;
use podwire_services::{Compiler, NodeInput};

use crate::failure::Failure;

#[derive(Debug, Default, Args)]
pub(super) struct SourceFlags {
    /// Also read the objects and show reasons: kubernetes, or files:DIR, as for the agent.
    #[arg(long, value_name = "SOURCE")]
    services: Option<String>,
    /// Name of this node in the objects [default: the host name].
    #[arg(long, value_name = "NAME", requires = "services")]
    node_name: Option<String>,
    /// Kubeconfig file [default: the service account of the pod].
    #[arg(long, value_name = "FILE", requires = "services")]
    kubeconfig: Option<PathBuf>,
}

impl SourceFlags {
    /// The objects; `None` without a source.
    pub(super) fn read(&self, what: &str) -> Result<Option<Compiler>, Failure> {
        let Some(text) = &self.services else { return Ok(None) };
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new(what, podwire_cni_spec::Error::internal(error.to_string()))
        };
        let client = || ClientOptions::from_kubeconfig(self.kubeconfig.clone());
        let source = Source::parse("--services", text, client).map_err(|error| failed(&error))?;
        let name = self.node_name().map_err(|error| failed(&error))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        let objects = runtime.block_on(service_objects(&source, &name)).map_err(|error| failed(&error))?;
        let mut compiler = Compiler::new(NodeInput { name, ..NodeInput::default() });
        objects.into_iter().for_each(|object| compiler.put(object));
        Ok(Some(compiler))
    }

    fn node_name(&self) -> std::io::Result<String> {
        match &self.node_name {
            Some(name) => Ok(name.clone()),
            None => Ok(std::fs::read_to_string("/proc/sys/kernel/hostname")?.trim().to_owned()),
        }
    }
}

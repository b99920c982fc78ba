//! The flags for network policies that both modes of the agent have.

use clap::Args;
use podwire_kubernetes::ClientOptions;
use podwire_policy_agent::Source;

#[derive(Debug, Args)]
pub(super) struct PolicyFlags {
    /// Enforce network policies from this source: kubernetes, or files:DIR with YAML or JSON files.
    #[arg(long, help_heading = "Policy", value_name = "SOURCE", env = "PODWIRE_POLICY", hide_env = true)]
    policy: Option<String>,
    /// Block established connections that a changed policy denies.
    #[arg(long, help_heading = "Policy", env = "PODWIRE_POLICY_CUT", hide_env = true, requires = "policy")]
    pub(super) policy_cut: bool,
}

impl PolicyFlags {
    /// The source of policies, if policies are enforced.
    pub(super) fn source(
        &self,
        kubernetes: impl FnOnce() -> ClientOptions,
    ) -> podwire_policy_agent::Result<Option<Source>> {
        self.policy.as_deref().map(|text| Source::parse("--policy", text, kubernetes)).transpose()
    }
}

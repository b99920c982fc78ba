//! The flags for Services that both modes of the agent have.

use clap::Args;
use ipnet::IpNet;
use podwire_agent::ServicesSettings;
use podwire_kubernetes::ClientOptions;
use podwire_policy_agent::Source;

#[derive(Debug, Args)]
pub(super) struct ServicesFlags {
    /// Serve Services in place of kube-proxy, from this source: kubernetes, or files:DIR.
    #[arg(long, help_heading = "Services", value_name = "SOURCE", env = "PODWIRE_SERVICES", hide_env = true)]
    services: Option<String>,
    /// Networks of the addresses that serve NodePorts [default: the Node's first of each family].
    #[arg(
        long,
        help_heading = "Services",
        value_name = "NETWORK,NETWORK",
        env = "PODWIRE_NODEPORT_ADDRESSES",
        hide_env = true,
        requires = "services",
        value_delimiter = ','
    )]
    nodeport_addresses: Vec<IpNet>,
}

impl ServicesFlags {
    /// The settings, if the agent serves Services.
    pub(super) fn settings(
        &self,
        kubernetes: impl FnOnce() -> ClientOptions,
    ) -> podwire_policy_agent::Result<Option<ServicesSettings>> {
        let networks = Some(self.nodeport_addresses.clone()).filter(|networks| !networks.is_empty());
        let source = self.services.as_deref().map(|text| Source::parse("--services", text, kubernetes));
        let source = source.transpose()?;
        Ok(source.map(|source| ServicesSettings { source, node_port_networks: networks }))
    }
}

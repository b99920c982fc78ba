//! The flags for Services that both modes of the agent have.

use std::net::SocketAddr;
use std::str::FromStr;

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
    /// Address of /healthz and /livez with kube-proxy's answers; 0.0.0.0 or :: for all, or none.
    #[arg(
        long,
        help_heading = "Services",
        value_name = "IP:PORT",
        env = "PODWIRE_SERVICES_HEALTHZ_ADDRESS",
        default_value = "0.0.0.0:10256",
        hide_env = true,
        requires = "services"
    )]
    services_healthz_address: HealthzAddress,
    /// Remove what kube-proxy left, when the Services are in the kernel.
    #[arg(
        long,
        help_heading = "Services",
        env = "PODWIRE_CLEANUP_KUBE_PROXY",
        hide_env = true,
        requires = "services"
    )]
    cleanup_kube_proxy: bool,
}

/// Where `/healthz` and `/livez` are served, if they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HealthzAddress(Option<SocketAddr>);

impl FromStr for HealthzAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<HealthzAddress, String> {
        if text == "none" {
            return Ok(HealthzAddress(None));
        }
        let address: Option<SocketAddr> =
            text.parse().ok().filter(|address: &SocketAddr| address.port() != 0);
        let why = "write an address and a port, such as 192.0.2.1:10256 or [2001:db8::1]:10256, or none";
        address.map(|address| HealthzAddress(Some(address))).ok_or_else(|| why.into())
    }
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
        let healthz = self.services_healthz_address.0;
        let cleanup_kube_proxy = self.cleanup_kube_proxy;
        Ok(source.map(|source| ServicesSettings {
            source,
            node_port_networks: networks,
            healthz,
            cleanup_kube_proxy,
        }))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        services: ServicesFlags,
    }

    #[test]
    fn only_an_agent_with_services_has_a_health_port() {
        let settings = |flags: &[&str]| {
            let flags =
                Flags::try_parse_from(["agent"].iter().chain(flags)).map_err(|error| error.to_string())?;
            let settings = flags.services.settings(|| ClientOptions::from_kubeconfig(None));
            settings.map_err(|error| error.to_string())
        };
        assert!(settings(&[]).unwrap().is_none());
        let default = settings(&["--services", "files:/x"]).unwrap().unwrap();
        assert_eq!(default.healthz, Some("0.0.0.0:10256".parse().unwrap()));
        let none =
            settings(&["--services", "files:/x", "--services-healthz-address", "none"]).unwrap().unwrap();
        assert_eq!(none.healthz, None);
        let alone = settings(&["--services-healthz-address", "none"]).unwrap_err();
        assert!(alone.contains("--services <SOURCE>"), "{alone}");
    }

    #[test]
    fn an_address_has_a_port_or_is_none() {
        for (text, expected) in [
            ("none", Some(None)),
            ("0.0.0.0:10256", Some(Some("0.0.0.0:10256".parse().unwrap()))),
            ("[::1]:10256", Some(Some("[::1]:10256".parse().unwrap()))),
            ("192.0.2.1", None),
            ("192.0.2.1:0", None),
            ("node:10256", None),
            ("", None),
        ] {
            assert_eq!(text.parse().ok().map(|HealthzAddress(address)| address), expected, "{text}");
        }
    }
}

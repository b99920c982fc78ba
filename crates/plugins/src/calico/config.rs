//! The config: Calico's keys that concern Linux and a pod's veth pair. `calico-ipam` and the agent read the keys about
//! the datastore. Keys about logs and request rates are ignored, because the agent does that work.

use std::path::Path;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use podwire_cni_plugin::{Request, Result};
use podwire_ip::IpFamily;
use serde::Deserialize;

use super::annotations::Permissions;
use super::readiness_gate::Gate;
use crate::veth_pair;

/// The file into which Calico's node agent writes the MTU that fits all routes and tunnels.
const MTU_FILE: &str = "/var/lib/calico/mtu";

/// The kernel's limit for one device (`rtnl_create_link` of net/core/rtnetlink.c).
const MAX_QUEUES: u32 = 4096;

/// The settings of the config.
#[derive(Debug)]
pub(super) struct Conf {
    pub(super) mtu: u32,
    pub(super) allow_ip_forwarding: Option<bool>,
    /// Receive queues and transmit queues of each end of the veth pair.
    pub(super) queues: u32,
    /// URLs that must respond before a pod is connected.
    pub(super) gates: Vec<Gate>,
    /// The annotations that pods may use.
    pub(super) permissions: Permissions,
    routes: Vec<IpNet>,
    include_default_routes: bool,
}

/// Calico's keys that the page lists as without effect or as refused: they are known, and not misspelt.
pub(super) const OTHER_KEYS: &[&str] = &[
    "nodename_file_optional",
    "dataplane_options",
    "policy_setup_timeout_seconds",
    "endpoint_status_dir",
    "ipam_lock_file",
    "qps",
    "burst",
    "log_level",
    "log_file_path",
    "log_file_max_size",
    "log_file_max_age",
    "log_file_max_count",
    "etcd_discovery_srv",
    "etcd_scheme",
    "etcd_authority",
    "policy.k8s_api_root",
    "policy.k8s_auth_token",
    "policy.k8s_client_certificate",
    "policy.k8s_client_key",
    "policy.k8s_certificate_authority",
    "kubernetes.k8s_api_root",
    "mode",
    "vxlan_mac_prefix",
    "vxlan_vni",
    "windows_*",
    "runtimeConfig.dns",
];

/// The keys of the config.
pub(super) const CONFIG_KEYS: &[&str] = &[
    "mtu",
    "require_mtu_file",
    "device_type",
    "container_settings.allow_ip_forwarding",
    "num_queues",
    "ipam.subnet",
    "ipam.ranges[][].subnet",
    "ipam.routes[].dst",
    "include_default_routes",
    "feature_control.ip_addrs_no_ipam",
    "feature_control.floating_ips",
    "readiness_gates",
    "kubernetes.node_name",
];

#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    mtu: u32,
    require_mtu_file: bool,
    device_type: String,
    container_settings: Option<ContainerSettings>,
    include_default_routes: bool,
    num_queues: u32,
    readiness_gates: Vec<String>,
    feature_control: FeatureControl,
    policy_setup_timeout_seconds: i64,
    dataplane_options: DataplaneOptions,
    ipam: Ipam,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FeatureControl {
    ip_addrs_no_ipam: bool,
    floating_ips: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DataplaneOptions {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContainerSettings {
    allow_ip_forwarding: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Ipam {
    #[serde(rename = "type")]
    kind: String,
    routes: Vec<Destination>,
}

#[derive(Deserialize)]
struct Destination {
    dst: String,
}

impl Conf {
    pub(super) fn read(req: &Request<'_>) -> Result<Conf> {
        let document: Document = req.config()?;
        let invalid =
            |text: String| podwire_cni_plugin::Error::from(podwire_cni_spec::Error::invalid_config(text));
        match document.device_type.as_str() {
            "" | "veth" => {}
            other => return Err(invalid(format!("device_type: {other:?} is not supported, only \"veth\""))),
        }
        match document.dataplane_options.kind.as_str() {
            "" | "linux" => {}
            other => {
                return Err(invalid(format!(
                    "dataplane_options.type: {other:?} is not supported, only \"linux\""
                )))
            }
        }
        if document.policy_setup_timeout_seconds < 0 {
            let seconds = document.policy_setup_timeout_seconds;
            return Err(invalid(format!(
                "policy_setup_timeout_seconds: invalid pod startup delay of {seconds}"
            )));
        }
        if document.num_queues > MAX_QUEUES {
            let queues = document.num_queues;
            return Err(invalid(format!(
                "num_queues: {queues} is not possible, it must be 1 to {MAX_QUEUES}"
            )));
        }
        let mtu = match document.mtu {
            0 => mtu_of_file(Path::new(MTU_FILE), document.require_mtu_file)?,
            mtu => mtu,
        };
        veth_pair::check_mtu(mtu)?;
        // Routes of host-local are for the pod. With other IPAM plugins, routes say whether the node needs a route to
        // the pod.
        let named = if document.ipam.kind == "host-local" { document.ipam.routes } else { Vec::new() };
        let route = |route: Destination| {
            podwire_cni_spec::addr::parse_net(&route.dst).map_err(|_| {
                invalid(format!("ipam.routes: {:?} is not a network such as \"10.0.0.0/8\"", route.dst))
            })
        };
        let FeatureControl { ip_addrs_no_ipam: no_ipam, floating_ips } = document.feature_control;
        let gates = document.readiness_gates.iter().map(|url| Gate::parse(url));
        Ok(Conf {
            mtu,
            queues: document.num_queues.max(1),
            gates: gates.collect::<Result<_, podwire_cni_spec::Error>>()?,
            permissions: Permissions { ipam: document.ipam.kind, no_ipam, floating_ips },
            allow_ip_forwarding: document.container_settings.map(|settings| settings.allow_ip_forwarding),
            routes: named.into_iter().map(route).collect::<Result<_>>()?,
            include_default_routes: document.include_default_routes,
        })
    }

    /// The destinations of the pod's routes of a family.
    pub(super) fn destinations(&self, family: IpFamily) -> Vec<IpNet> {
        let everything = match family {
            IpFamily::V4 => IpNet::V4(Ipv4Net::default()),
            IpFamily::V6 => IpNet::V6(Ipv6Net::default()),
        };
        let mut all: Vec<IpNet> =
            self.routes.iter().filter(|net| IpFamily::of_net(**net) == family).copied().collect();
        if (self.routes.is_empty() || self.include_default_routes) && !all.contains(&everything) {
            all.push(everything);
        }
        all
    }
}

/// The MTU of the file. If there is none: 0, which selects the kernel's default.
fn mtu_of_file(path: &Path, required: bool) -> Result<u32> {
    let read = std::fs::read_to_string(path);
    match read.ok().and_then(|text| text.trim().parse().ok()) {
        Some(mtu) => Ok(mtu),
        None if required => {
            let text = format!("require_mtu_file: {} is missing, or holds no number", path.display());
            let hint = "Calico's node agent writes the file when it is ready; alternatively set mtu";
            Err(podwire_cni_spec::Error::new(podwire_cni_spec::code::TRY_AGAIN, text)
                .with_details(hint)
                .into())
        }
        None => Ok(0),
    }
}

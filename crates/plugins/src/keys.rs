//! Config keys that several plugins share.

/// Name servers for the result.
pub const DNS: &[&str] = &["dns.nameservers", "dns.domain", "dns.search", "dns.options"];

/// The IPAM plugin has more keys below `ipam`.
pub const IPAM: &[&str] = &["ipam.type"];

/// The routes of an IPAM plugin.
pub const IPAM_ROUTES: &[&str] = &[
    "ipam.routes[].dst",
    "ipam.routes[].gw",
    "ipam.routes[].mtu",
    "ipam.routes[].advmss",
    "ipam.routes[].priority",
    "ipam.routes[].table",
    "ipam.routes[].scope",
];

/// The section that [`Policy`](crate::policy::Policy) reads.
pub const POLICY: &[&str] =
    &["policy.type", "policy.timeout", "policy.onTimeout", "policy.socket", "policy.allowedSourcePrefixes"];

/// How calico and calico-ipam reach the datastore if no agent owns the node's blocks.
pub const CALICO_DATASTORE: &[&str] = &[
    "datastore_type",
    "etcd_endpoints",
    "etcd_key_file",
    "etcd_cert_file",
    "etcd_ca_cert_file",
    "sqlite_path",
    "calico_api_group",
    "kubernetes.kubeconfig",
    "nodename",
    "nodename_file",
    "hostname",
];

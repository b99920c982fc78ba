//! Firewall features with the running kernel, real namespaces and real packets. Needs root, `ip`, `nft`, `iptables` and
//! `conntrack`.

mod forwarding;
mod go_plugins;
mod host_ports;
mod masquerading;
mod repair;
mod spoofing;
mod testbed;

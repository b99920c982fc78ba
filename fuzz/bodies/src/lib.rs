//! The bodies of the fuzz targets, one module each. A body parses arbitrary bytes as one kind of external input, and
//! panics if the parser panics or breaks an invariant.
//!
//! cargo-fuzz runs [`TARGETS`] guided by coverage (`make fuzz`). `make test` runs them with [`mutation`]s of the
//! committed seeds.

#![forbid(unsafe_code)]

pub mod args;
pub mod conditions;
pub mod config;
pub mod host_local;
pub mod mutation;
pub mod netlink;
pub mod result;
mod status;

/// Runs one input.
pub type Body = fn(&[u8]);

/// Every target: its name and its body.
pub const TARGETS: &[(&str, Body)] = &[
    ("args", args::run),
    ("conditions", conditions::run),
    ("config", config::run),
    ("host_local", host_local::run),
    ("netlink", netlink::run),
    ("result", result::run),
];

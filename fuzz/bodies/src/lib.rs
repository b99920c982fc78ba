//! What the fuzzer does with arbitrary bytes: one module a target. Each reads the bytes as something that comes to
//! the project from outside, and panics if a promise is broken; that nothing panics by itself is the first promise.
//!
//! [`TARGETS`] are run by cargo-fuzz (`make fuzz`), guided by coverage, and with [`mutation`]s of the committed
//! seeds by `make test`.

#![forbid(unsafe_code)]

pub mod args;
pub mod conditions;
pub mod config;
pub mod host_local;
pub mod mutation;
pub mod netlink;
pub mod result;
mod status;

/// What is done with some bytes.
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

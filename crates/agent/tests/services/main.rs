//! `--services` in a whole agent: from files, or from a real kube-apiserver, to the kernel and to the status; on a node where
//! kube-proxy runs or ran; and an agent that no longer serves Services. Needs root, `ip` and `nft`; without the programs of
//! Kubernetes the test with an API server is left out.

#![allow(clippy::unwrap_used)]

mod kube_proxy;
mod serving;
mod testbed;

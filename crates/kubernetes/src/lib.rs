//! What every part that talks to a Kubernetes API server shares.
//!
//! - [`ClientOptions`] says how to reach the server, and builds a [`kube::Client`].
//! - [`request`] limits one request to [`REQUEST_TIMEOUT`]: a broken network never answers "no".
//! - [`Backoff`] is the delay between attempts, also for servers other than Kubernetes.
//! - [`PartialObject`] is an object of which only the needed fields are decoded.
//! - [`describe`] and [`error_chain`] turn client errors into texts that name the cause; [`is_missing_kind`] tells
//!   a kind that the server does not have.

#![forbid(unsafe_code)]

mod backoff;
mod client;
mod error;
mod partial_object;

pub use backoff::{random_u32, Backoff};
pub use client::{request, ClientOptions, REQUEST_TIMEOUT};
pub use error::{describe, error_chain, is_missing_kind, Error, Result};
pub use partial_object::{Fields, PartialObject, Selection};

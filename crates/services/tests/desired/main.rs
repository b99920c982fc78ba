//! Which frontends and endpoints follow from which objects: tables of cases.

#![allow(clippy::unwrap_used)]

mod cluster;
mod frontends;
mod mistakes;
mod options;
mod slices;
mod state;

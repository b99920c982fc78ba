//! Puts plugins and a network where a node's container runtimes look for them, and takes them back.
//!
//! A runtime has a folder of plugins and a folder of networks; which ones, its own config says, and [`layout`] reads
//! that. What is to be done is decided first, without touching anything: a [`Plan`] of [`Step`]s, made from what is
//! wished for and from what was found on the node. Then it is applied.
//!
//! Three promises hold wherever the process is killed:
//! - A file of ours appears whole, under its final name, by a rename within its folder. A plugin that runs right now is
//!   not disturbed, and a runtime that watches the folder of networks is told.
//! - The network comes last, when its plugins are there; it goes first.
//! - What is put is written down before it is put ([`Record`]), with what was there before. So the next install or
//!   uninstall knows what belongs to whom, and a file that somebody changed meanwhile is left alone.

#![forbid(unsafe_code)]

mod apply;
mod error;
mod identity;
pub mod layout;
mod neighbours;
pub mod network;
mod plan;
mod record;
mod root;
mod survey;
mod turn;

pub use apply::apply;
pub use error::Error;
pub use identity::Identity;
pub use layout::{Layout, Reads, Runtime};
pub use neighbours::{neighbours, Neighbour};
pub use plan::{Content, Plan, Remark, Step, Target, Why};
pub use record::{Entry, Kind, Record};
pub use root::Root;
pub use survey::Survey;
pub use turn::Turn;

/// What this crate's functions return.
pub type Result<T> = std::result::Result<T, Error>;

/// Where the record is kept.
pub const STATE: &str = "/var/lib/podwire/install";

//! What plugins and daemons say to each other.
//!
//! A plugin lives for a moment, and must link nothing that is slow to start; a daemon knows what lasts. They speak over a unix
//! socket: the plugin writes a question as a [line](line) of JSON, the daemon answers with one, and that was it. What a plugin could not
//! say, because nobody listened, it leaves on the disk ([`notes`]).

#![forbid(unsafe_code)]

pub mod blocks;
pub mod dhcp;
pub mod door;
pub mod line;
pub mod notes;
pub mod pods;
pub mod status;

pub use podwire_kernel::Owner;

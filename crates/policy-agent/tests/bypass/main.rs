//! Ways around policies: packets and frames that the IP rules could miss, forged sources, neighbours and routers, other
//! interfaces, and traffic while rules change. Each must be dropped, and what a network needs must pass. Needs root.

mod attachment;
mod bridge;
mod frames;
mod link_local;
mod matrix;
mod packets;
mod probes;
mod secondary;
#[path = "../testbed/mod.rs"]
mod testbed;

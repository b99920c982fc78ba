//! Pods come and go, agents are killed, stores fail: nobody has an address twice, and none is lost.

mod audit;
mod endpoints;
mod leases;
mod pools;
mod cluster;

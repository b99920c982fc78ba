//! The block allocator with killed agents and failing stores: no address is assigned twice, and none leaks.

mod audit;
mod cluster;
mod endpoints;
mod leases;
mod owners;
mod pools;
mod requests;

//! `podwire pod`: pods without containers, from their first namespace to the last of their traces.

mod folder;
mod guide;
mod kills;
mod life;
mod many;
mod refusals;
mod teardown;
mod world;

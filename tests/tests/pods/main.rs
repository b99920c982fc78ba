//! `podwire pod`: pods without containers, from creation to removal.

mod folder;
mod guide;
mod kills;
mod life;
mod many;
mod refusals;
mod teardown;
mod world;

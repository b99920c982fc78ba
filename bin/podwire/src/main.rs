//! podwire: the pod network's hand tool. Called as `cnitool` it is a drop-in for that.

use std::process::ExitCode;

#[global_allocator]
static ARENA: podwire_netlink::sys::Arena = podwire_netlink::sys::Arena::new();

fn main() -> ExitCode {
    podwire_cli::main(std::env::args_os())
}

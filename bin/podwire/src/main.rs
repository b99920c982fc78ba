//! podwire: the pod network's hand tool. Called as `cnitool` it is a drop-in for that.

use std::process::ExitCode;

#[global_allocator]
static ARENA: netlink::sys::Arena = netlink::sys::Arena::new();

fn main() -> ExitCode {
    cli::main(std::env::args_os())
}

//! podwire: the pod network's hand tool. Called as `cnitool` it is a drop-in for that.

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main(std::env::args_os())
}

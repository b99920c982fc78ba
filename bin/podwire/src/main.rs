//! The program `podwire`: node agents, controller and command line. Under the name `cnitool` it is a drop-in for that tool.

use std::process::ExitCode;

fn main() -> ExitCode {
    podwire_cli::main(std::env::args_os())
}

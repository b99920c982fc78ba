//! The flag for the fast path that both modes of the agent have.

use clap::{Args, ValueEnum};
use podwire_agent::FastPathMode;

#[derive(Debug, Args)]
pub(super) struct FastPathFlags {
    /// Let eBPF programs forward packets of connections that nftables has accepted.
    #[arg(
        long,
        help_heading = "Fast path",
        value_name = "on|off",
        env = "PODWIRE_FAST_PATH",
        hide_env = true,
        hide_possible_values = true,
        default_value = "on"
    )]
    fast_path: Switch,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Switch {
    On,
    Off,
}

impl FastPathFlags {
    pub(super) fn mode(&self) -> FastPathMode {
        match self.fast_path {
            Switch::On => FastPathMode::On,
            Switch::Off => FastPathMode::Off,
        }
    }
}

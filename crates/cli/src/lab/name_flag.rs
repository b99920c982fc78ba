//! The flag for the name of a lab.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct NameFlag {
    /// Name of the lab.
    #[arg(long, value_name = "NAME", default_value = "lab")]
    pub(super) name: String,
}

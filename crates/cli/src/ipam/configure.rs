//! `podwire ipam configure`: the IPAM settings of all nodes.

use clap::Args;
use podwire_block_ipam::Config;
use serde_json::json;

use super::store_flags::{allocator, rules, StoreFlags};
use crate::failure::Failure;
use crate::output::Output;

pub(super) const EXAMPLES: &str = "Examples:
  podwire ipam configure                              show the settings
  podwire ipam configure --strict-affinity true
  podwire ipam configure --strict-affinity true --max-blocks-per-host 4
  podwire ipam configure --ip-cooldown-seconds 30";

#[derive(Debug, Args)]
pub(crate) struct Configure {
    /// Whether a node may use addresses of its own blocks only.
    #[arg(long, alias = "strictaffinity", value_name = "true|false")]
    strict_affinity: Option<bool>,
    /// Whether a node may claim new blocks.
    #[arg(long, value_name = "true|false")]
    auto_allocate_blocks: Option<bool>,
    /// Maximum number of blocks of a node; 0 for no limit.
    #[arg(long, value_name = "COUNT")]
    max_blocks_per_host: Option<usize>,
    /// Seconds for which a released address is not reused.
    #[arg(long, value_name = "SECONDS")]
    ip_cooldown_seconds: Option<u64>,
    #[command(flatten)]
    store: StoreFlags,
}

const WHAT: &str = "cannot configure addresses";

impl Configure {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let changes = self.strict_affinity.is_some()
            || self.auto_allocate_blocks.is_some()
            || self.max_blocks_per_host.is_some()
            || self.ip_cooldown_seconds.is_some();
        let store = self.store.open(WHAT, changes)?;
        let config = if changes {
            allocator(&*store).configure(|config| self.change(config)).map_err(Failure::context(WHAT))?
        } else {
            rules(&*store, WHAT)?.config
        };
        let limit = match config.max_blocks_per_host {
            0 => "no limit".to_owned(),
            limit => limit.to_string(),
        };
        let text = format!(
            "strict affinity: {}\nauto-allocate blocks: {}\nmax blocks per host: {limit}\ncool-down: {} s\n",
            config.strict_affinity, config.auto_allocate_blocks, config.ip_cooldown_seconds
        );
        let json = json!({
            "strictAffinity": config.strict_affinity, "autoAllocateBlocks": config.auto_allocate_blocks,
            "maxBlocksPerHost": config.max_blocks_per_host, "ipCooldownSeconds": config.ip_cooldown_seconds,
        });
        Ok(Output::new(text, json))
    }

    fn change(&self, config: &mut Config) {
        config.strict_affinity = self.strict_affinity.unwrap_or(config.strict_affinity);
        config.auto_allocate_blocks = self.auto_allocate_blocks.unwrap_or(config.auto_allocate_blocks);
        config.max_blocks_per_host = self.max_blocks_per_host.unwrap_or(config.max_blocks_per_host);
        config.ip_cooldown_seconds = self.ip_cooldown_seconds.unwrap_or(config.ip_cooldown_seconds);
    }
}

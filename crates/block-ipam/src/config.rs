//! The settings of the cluster.

use serde::{Deserialize, Serialize};

use super::json::{self, Unknown};
use super::record::Value;
use super::Error;

/// How long an address may cool down at most, in seconds.
const LONGEST_COOLDOWN: u64 = 1200;

/// What holds for all nodes. Without a record of it: new blocks are made as they are needed, and borrowing is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Whether a node may use its own blocks only.
    #[serde(default, skip_serializing_if = "is_false")]
    pub strict_affinity: bool,
    /// Whether a node may claim new blocks.
    #[serde(default, skip_serializing_if = "is_false")]
    pub auto_allocate_blocks: bool,
    /// How many blocks a node may have; 0 for as many as it needs.
    #[serde(default, rename = "maxBlocksPerHost", skip_serializing_if = "is_zero")]
    pub max_blocks_per_host: usize,
    /// Whether virtual machines of KubeVirt keep their addresses. Kept, not used.
    #[serde(default, rename = "kubeVirtVMAddressPersistence", skip_serializing_if = "Option::is_none")]
    pub kube_virt_vm_address_persistence: Option<String>,
    /// How many seconds an address that was given back is nobody's.
    #[serde(default, rename = "ipCooldownSeconds", skip_serializing_if = "is_zero")]
    pub ip_cooldown_seconds: u64,
    /// What we do not know: kept as it is.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            strict_affinity: false,
            auto_allocate_blocks: true,
            max_blocks_per_host: 0,
            kube_virt_vm_address_persistence: None,
            ip_cooldown_seconds: 0,
            unknown: Unknown::new(),
        }
    }
}

impl Config {
    /// Calico's own rules, which it checks when it reads them too.
    pub fn validate(&self) -> Result<(), Error> {
        let why = if !self.strict_affinity && !self.auto_allocate_blocks {
            "without strict affinity, nodes must be allowed to claim blocks".to_owned()
        } else if self.max_blocks_per_host > 0 && !self.strict_affinity {
            format!("a limit of {} blocks needs strict affinity", self.max_blocks_per_host)
        } else if self.ip_cooldown_seconds > LONGEST_COOLDOWN {
            format!(
                "addresses may cool down for {LONGEST_COOLDOWN} s, not for {} s",
                self.ip_cooldown_seconds
            )
        } else {
            return Ok(());
        };
        Err(Error::Settings { why })
    }
}

impl Value for Config {
    fn decode(bytes: &[u8]) -> Result<Config, String> {
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }

    fn encode(&self) -> Result<Vec<u8>, String> {
        json::encode(self).map_err(|error| error.to_string())
    }

    fn is_deleted(&self) -> bool {
        false
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_is_false_except_when_all_is_absent() {
        let text = br#"{"strict_affinity":true,"kubeVirtVMAddressPersistence":"Enabled","later":1}"#;
        let config = Config::decode(text).unwrap();
        assert!(config.strict_affinity && !config.auto_allocate_blocks);
        assert_eq!(config.encode().unwrap(), text);
        assert_eq!(Config::default().encode().unwrap(), br#"{"auto_allocate_blocks":true}"#);
    }

    #[test]
    fn settings_that_would_starve_pods_are_refused() {
        let with = |strict, auto, blocks, cooldown| {
            let config = Config {
                strict_affinity: strict,
                auto_allocate_blocks: auto,
                max_blocks_per_host: blocks,
                ip_cooldown_seconds: cooldown,
                ..Config::default()
            };
            config.validate().is_ok()
        };
        assert!(with(false, true, 0, 1200) && with(true, false, 4, 0) && with(true, true, 4, 0));
        assert!(!with(false, false, 0, 0) && !with(false, true, 4, 0) && !with(false, true, 0, 1201));
    }
}

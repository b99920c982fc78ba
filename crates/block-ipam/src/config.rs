//! The cluster-wide IPAM configuration.

use serde::{Deserialize, Serialize};

use super::json::{self, Unknown};
use super::record::Value;
use super::Error;

/// The maximum cooldown of an address, in seconds.
const MAX_COOLDOWN: u64 = 1200;

/// The configuration for all nodes. Without a record, new blocks are allocated as needed, and borrowing is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Whether a node may use only its own blocks.
    #[serde(default, skip_serializing_if = "is_false")]
    pub strict_affinity: bool,
    /// Whether a node may claim new blocks.
    #[serde(default, skip_serializing_if = "is_false")]
    pub auto_allocate_blocks: bool,
    /// The maximum number of blocks of a node; 0 for no limit.
    #[serde(default, rename = "maxBlocksPerHost", skip_serializing_if = "is_zero")]
    pub max_blocks_per_host: usize,
    /// Whether KubeVirt virtual machines keep their addresses. It is kept but not used.
    #[serde(default, rename = "kubeVirtVMAddressPersistence", skip_serializing_if = "Option::is_none")]
    pub kube_virt_vm_address_persistence: Option<String>,
    /// How many seconds a released address cools down before it is assigned again.
    #[serde(default, rename = "ipCooldownSeconds", skip_serializing_if = "is_zero")]
    pub ip_cooldown_seconds: u64,
    /// Unknown fields.
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
    /// Checks Calico's rules, which Calico checks too when it reads the record.
    pub fn validate(&self) -> Result<(), Error> {
        let why = if !self.strict_affinity && !self.auto_allocate_blocks {
            "without strict affinity, nodes must be allowed to allocate blocks".to_owned()
        } else if self.max_blocks_per_host > 0 && !self.strict_affinity {
            format!("a limit of {} blocks needs strict affinity", self.max_blocks_per_host)
        } else if self.ip_cooldown_seconds > MAX_COOLDOWN {
            format!("the cooldown must be at most {MAX_COOLDOWN} s, not {} s", self.ip_cooldown_seconds)
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
    fn absent_fields_are_false_unless_the_record_is_absent() {
        let text = br#"{"strict_affinity":true,"kubeVirtVMAddressPersistence":"Enabled","later":1}"#;
        let config = Config::decode(text).unwrap();
        assert!(config.strict_affinity && !config.auto_allocate_blocks);
        assert_eq!(config.encode().unwrap(), text);
        assert_eq!(Config::default().encode().unwrap(), br#"{"auto_allocate_blocks":true}"#);
    }

    #[test]
    fn settings_without_addresses_for_pods_are_rejected() {
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

//! `podwire cni reload`: restores firewall rules after a flush.

use clap::Args;
use podwire_cni_plugin::{ledger, Command, Finding};
use serde_json::json;

use crate::failure::Failure;
use crate::output::Output;

pub(super) const EXAMPLES: &str = "Examples:
  nft flush ruleset; podwire cni reload
  firewall-cmd --reload; podwire cni reload

From the plugins' ledger, the command restores the rules of every attached pod for masquerading,
host ports, forwarding and MAC spoof checks. Existing rules stay as they are.";

#[derive(Debug, Args)]
pub(crate) struct Reload {}

impl Reload {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let registry = super::runtime_flags::registry();
        let mut restored = 0;
        let (mut errors, mut failed) = (Vec::new(), Vec::new());
        for file in ledger::all().iter().filter(|file| !file.is_locked) {
            // An unfinished ADD has no rules to restore.
            for entry in file.entries.iter().filter(|entry| entry.result.is_some()) {
                let Some(plugin) = registry.find(&entry.plugin) else { continue };
                let request = entry.request(Command::Check, registry);
                match request.and_then(|req| plugin.inspect_rules(&req)).and_then(Finding::repair_all) {
                    Ok(count) => restored += count,
                    Err(error) => {
                        let (of, error) =
                            (format!("{} of {}", entry.plugin, entry.owner().comment()), error.to_cni());
                        failed.push(json!({
                            "network": entry.network, "container": entry.container, "ifname": entry.ifname,
                            "plugin": entry.plugin, "error": error.to_json(),
                        }));
                        errors.push(podwire_cni_spec::Error { msg: format!("{of}: {}", error.msg), ..error });
                    }
                }
            }
        }
        let text = match restored {
            0 => "no rule is missing\n".to_owned(),
            some => format!("restored {some} missing rules\n"),
        };
        let answer = Output::new(text, json!({ "restored": restored, "failed": failed }));
        match errors
            .into_iter()
            .reduce(|all, one| podwire_cni_spec::Error { msg: format!("{}; {}", all.msg, one.msg), ..all })
        {
            None => Ok(answer),
            Some(error) => Err(Failure::new("cannot restore all rules", error).with_output(answer)),
        }
    }
}

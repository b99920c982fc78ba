//! `podwire cni check`: compares an attachment with the result of its ADD, and restores it.

use clap::Args;
use podwire_cni_runtime::{Difference, Identity, Remaining, RepairReport};
use podwire_cni_spec::NetworkList;
use serde_json::{json, Value};

use super::runtime_flags::RuntimeFlags;
use super::target::Target;
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;

pub(super) const EXAMPLES: &str = "Examples:
  podwire cni check pods blue && echo fine
  podwire cni check pods blue --repair
  podwire cni check pods --container web-1 /proc/4711/ns/net --repair --json

With --repair the plugins restore addresses, routes, a deleted bridge, flushed rules, limits and
sysctls. Differences that only a new attachment can repair are listed, and the exit status is 1.";

#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    target: Target,
    /// Restore what differs from the result of the ADD.
    #[arg(long)]
    repair: bool,
    #[command(flatten)]
    pub(super) flags: RuntimeFlags,
}

impl Check {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let (container, network) = (self.target.name(), &self.target.network);
        let what = || format!("the attachment of {container} to {network} is damaged");
        let list = self.flags.configs().find(network).map_err(Failure::context(what()))?.list;
        let identity = self.target.existing(&self.flags.cache()).map_err(Failure::context(what()))?;
        if self.repair {
            return self.repair(&list, &identity);
        }
        self.flags.runtime().check(&list, &identity).map_err(Failure::context(what()))?;
        Ok(Output::new(self.verdict(&list), self.json(&identity, true)))
    }

    fn repair(&self, list: &NetworkList, identity: &Identity) -> Result<Output, Failure> {
        let what = format!("cannot repair {} in {}", self.target.name(), self.target.network);
        let repaired = self.flags.runtime().repair(list, identity).map_err(Failure::context(what))?;
        let success = repaired.is_complete();
        let interface = format!("{} of {}", self.target.ifname(), self.target.name());
        let mut text = describe(&repaired, &interface, Paint::stdout());
        text += &if success {
            self.verdict(list)
        } else {
            let (container, network) = (self.target.name(), &self.target.network);
            format!("the attachment of {container} to {network} is damaged: detach and attach it again\n")
        };
        let mut json = self.json(identity, success);
        json["repaired"] = repaired.repaired.iter().map(repaired_json).collect();
        json["left"] = repaired.remaining.iter().map(left_json).collect();
        Ok(Output { text, json, success })
    }

    fn verdict(&self, list: &NetworkList) -> String {
        let (container, network) = (self.target.name(), &self.target.network);
        if list.disable_check {
            format!("{network} disables CHECK\n")
        } else {
            format!("the attachment of {container} to {network} is intact\n")
        }
    }

    fn json(&self, identity: &Identity, ok: bool) -> Value {
        let (network, ifname) = (&self.target.network, self.target.ifname());
        json!({ "network": network, "container": identity.container, "ifname": ifname, "ok": ok })
    }
}

/// One line for each difference.
fn describe(report: &RepairReport, interface: &str, paint: Paint) -> String {
    let mut text = String::new();
    for Difference { what, .. } in &report.repaired {
        text += &format!("{interface}: {} {what}\n", paint.good("repaired:"));
    }
    for Remaining { what, reason, .. } in &report.remaining {
        let reason = reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        text += &format!("{interface}: {} {what}{reason}\n", paint.bad("not repaired:"));
    }
    text
}

fn repaired_json(one: &Difference) -> Value {
    json!({ "plugin": one.plugin, "what": one.what })
}

fn left_json(one: &Remaining) -> Value {
    json!({ "plugin": one.plugin, "what": one.what, "reason": one.reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_difference_is_one_line() {
        let repaired = vec![Difference { plugin: "bridge".into(), what: "interface eth0 is down".into() }];
        let reason = Some("it is gone".into());
        let remaining = vec![Remaining { plugin: "sbr".into(), what: "a rule is missing".into(), reason }];
        let text = "eth0 of blue: repaired: interface eth0 is down\n\
                    eth0 of blue: not repaired: a rule is missing (it is gone)\n";
        assert_eq!(describe(&RepairReport { repaired, remaining }, "eth0 of blue", Paint::plain()), text);
    }
}

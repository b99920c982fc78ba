//! `podwire cni check`: is an attachment as it was made? And if not, put back what can be.

use clap::Args;
use podwire_cni_runtime::{Difference, Identity, Remaining, RepairReport};
use podwire_cni_spec::NetworkList;
use serde_json::{json, Value};

use super::place::Place;
use super::target::Target;
use crate::paint::Paint;
use crate::{Answer, Failure};

pub(super) const EXAMPLES: &str = "Examples:
  podwire cni check pods blue && echo fine
  podwire cni check pods blue --repair
  podwire cni check pods --container web-1 /proc/4711/ns/net --repair --json

With --repair, what was changed since the add is put back: addresses, routes, a deleted bridge, flushed rules,
limits, sysctls. What only a new attachment can bring back is told, and the exit status is 1.";

#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    target: Target,
    /// Put back what is not as it was made.
    #[arg(long)]
    repair: bool,
    #[command(flatten)]
    place: Place,
}

impl Check {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let (container, network) = (self.target.name(), &self.target.network);
        let what = || format!("{container} is not attached to {network} as it should be");
        let list = self.place.folder().find(network).map_err(Failure::to(what()))?.list;
        let identity = self.target.existing(&self.place.cache()).map_err(Failure::to(what()))?;
        if self.repair {
            return self.repair(&list, &identity);
        }
        self.place.runtime().check(&list, &identity).map_err(Failure::to(what()))?;
        Ok(Answer::new(self.verdict(&list), self.json(&identity, true)))
    }

    fn repair(&self, list: &NetworkList, identity: &Identity) -> Result<Answer, Failure> {
        let what = format!("cannot repair {} in {}", self.target.name(), self.target.network);
        let repaired = self.place.runtime().repair(list, identity).map_err(Failure::to(what))?;
        let success = repaired.is_complete();
        let place = format!("{} of {}", self.target.ifname(), self.target.name());
        let mut text = describe(&repaired, &place, Paint::stdout());
        text += &match success {
            true => self.verdict(list),
            false => format!(
                "{} is not attached to {} as it should be: attach it anew\n",
                self.target.name(),
                self.target.network
            ),
        };
        let mut json = self.json(identity, success);
        json["repaired"] = repaired.repaired.iter().map(mended).collect();
        json["left"] = repaired.remaining.iter().map(left).collect();
        Ok(Answer { text, json, success })
    }

    fn verdict(&self, list: &NetworkList) -> String {
        let (container, network) = (self.target.name(), &self.target.network);
        match list.disable_check {
            true => format!("{network} switches checks off\n"),
            false => format!("{container} is attached to {network} as it should be\n"),
        }
    }

    fn json(&self, identity: &Identity, ok: bool) -> Value {
        let (network, ifname) = (&self.target.network, self.target.ifname());
        json!({ "network": network, "container": identity.container, "ifname": ifname, "ok": ok })
    }
}

/// A line for each difference.
fn describe(repaired: &RepairReport, place: &str, paint: Paint) -> String {
    let mut text = String::new();
    for Difference { what, .. } in &repaired.repaired {
        text += &format!("{place}: {} {what}\n", paint.good("put back:"));
    }
    for Remaining { what, reason: why, .. } in &repaired.remaining {
        let why = why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        text += &format!("{place}: {} {what}{why}\n", paint.bad("not put back:"));
    }
    text
}

fn mended(one: &Difference) -> Value {
    json!({ "plugin": one.plugin, "what": one.what })
}

fn left(one: &Remaining) -> Value {
    json!({ "plugin": one.plugin, "what": one.what, "why": one.reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_difference_has_its_line() {
        let put_back = vec![Difference { plugin: "bridge".into(), what: "interface eth0 is down".into() }];
        let why = Some("it is gone".into());
        let left = vec![Remaining { plugin: "sbr".into(), what: "a rule is missing".into(), reason: why }];
        let text = "eth0 of blue: put back: interface eth0 is down\n\
                    eth0 of blue: not put back: a rule is missing (it is gone)\n";
        assert_eq!(
            describe(&RepairReport { repaired: put_back, remaining: left }, "eth0 of blue", Paint::plain()),
            text
        );
    }
}

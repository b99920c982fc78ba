//! `podwire cni audit`: compares the kernel objects of this node with their owners, in both directions.

use clap::Args;
use podwire_audit::{Fault, Node};
use podwire_cni_runtime::Record;
use serde_json::{json, Value};

use super::records::owner_label;
use super::runtime_flags::RuntimeFlags;
use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;
use crate::table::table;

pub(super) const EXAMPLES: &str = "Examples:
  podwire cni audit
  podwire cni audit --fix
  podwire cni audit --json | jq '.faults[] | select(.repairable | not)'

The audit compares the plugins' ledger (/run/podwire/ledger), the runtimes' records, the address
pools of host-local and the kernel. --fix detaches pods that no longer exist, removes orphaned
objects and restores missing objects of running pods. The exit status is 1 while a fault is left.";

#[derive(Debug, Args)]
pub(crate) struct Audit {
    /// Repair the faults that can be repaired.
    #[arg(long)]
    fix: bool,
    #[command(flatten)]
    pub(super) flags: RuntimeFlags,
}

/// A fault and the outcome of its repair.
struct Row {
    side: &'static str,
    owner: String,
    what: String,
    repairable: bool,
    /// `None` if no repair was tried.
    repaired: Option<Result<(), podwire_cni_spec::Error>>,
}

impl Audit {
    pub(crate) fn run(&self) -> Result<Output, Failure> {
        let node = Node {
            folder: self.flags.configs(),
            cache: self.flags.cache(),
            runtime: self.flags.runtime(),
            registry: super::runtime_flags::registry(),
        };
        // Read before a repair removes records.
        let records = self.flags.cache().list().records;
        let rows: Vec<Row> = node.audit().into_iter().map(|fault| self.row(fault)).collect();
        let lines = |paint| lines(&rows, &records, paint);
        let paint = Paint::stdout();
        let open = rows.iter().filter(|row| !matches!(row.repaired, Some(Ok(())))).count();
        let text = match (rows.len(), self.fix) {
            (0, _) => "no faults: ledger, records, pools and kernel agree\n".to_owned(),
            (all, true) => format!("{}\n{} of {all} repaired\n", lines(paint), all - open),
            (all, false) => {
                let can = rows.iter().filter(|row| row.repairable).count();
                format!("{}\n{all} faults; --fix repairs {can} of them\n", lines(paint))
            }
        };
        let json = json!({ "faults": rows.iter().map(Row::to_json).collect::<Vec<_>>() });
        Ok(Output { success: open == 0, ..Output::new(text, json) })
    }

    fn row(&self, fault: Fault<'_>) -> Row {
        let (side, owner, what) = (fault.location.name(), fault.owner.clone(), fault.what());
        let repairable = fault.is_repairable();
        let repaired = (self.fix && repairable).then(|| fault.repair().map_err(|error| error.to_cni()));
        Row { side, owner, what, repairable, repaired }
    }
}

fn lines(rows: &[Row], records: &[Record], paint: Paint) -> String {
    let cells = |row: &Row| {
        let state = match &row.repaired {
            Some(Ok(())) => paint.good("repaired"),
            Some(Err(error)) => paint.bad(&format!("not repaired: {error}")),
            None if row.repairable => "repairable".to_owned(),
            None => paint.bad("repair by hand"),
        };
        vec![row.side.to_owned(), owner_label(&row.owner, records), state, row.what.clone()]
    };
    table(&["WHERE", "OWNER", "STATE", "FAULT"], &rows.iter().map(cells).collect::<Vec<_>>(), paint)
}

impl Row {
    fn to_json(&self) -> Value {
        let mut json = json!({
            "side": self.side,
            "owner": self.owner,
            "what": self.what,
            "repairable": self.repairable,
            "repaired": matches!(self.repaired, Some(Ok(()))),
        });
        if let Some(Err(error)) = &self.repaired {
            json["error"] = error.to_json();
        }
        json
    }
}

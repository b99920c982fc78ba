//! `podwire cni audit`: is everything on this node somebody's, and has everybody what is theirs?

use clap::Args;
use podwire_audit::{Fault, Node};
use serde_json::{json, Value};

use super::place::Place;
use crate::paint::Paint;
use crate::table::table;
use crate::{Answer, Failure};

pub(super) const EXAMPLES: &str = "Examples:
  podwire cni audit
  podwire cni audit --fix
  podwire cni audit --json | jq '.faults[] | select(.canBeMended | not)'

It compares the plugins' ledger (/run/podwire/ledger), the runtimes' records, the address pools of host-local and the
kernel. --fix detaches pods that are gone, removes what is nobody's and puts back what living pods lack. It ends with
status 1 while anything is wrong.";

#[derive(Debug, Args)]
pub(crate) struct Audit {
    /// Mend what can be mended.
    #[arg(long)]
    fix: bool,
    #[command(flatten)]
    place: Place,
}

/// A fault, and what came of it.
struct Row {
    side: &'static str,
    owner: String,
    what: String,
    is_repairable: bool,
    /// `None` if it was only looked at.
    mended: Option<Result<(), podwire_cni_spec::Error>>,
}

impl Audit {
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let node = Node {
            folder: self.place.folder(),
            cache: self.place.cache(),
            runtime: self.place.runtime(),
            registry: super::place::registry(),
        };
        let rows: Vec<Row> = node.audit().into_iter().map(|fault| self.treat(fault)).collect();
        let paint = Paint::stdout();
        let open = rows.iter().filter(|row| !matches!(row.mended, Some(Ok(())))).count();
        let text = match (rows.len(), self.fix) {
            (0, _) => "nothing is wrong: ledger, records, pools and kernel agree\n".to_owned(),
            (all, true) => format!("{}\n{} of {all} mended\n", lines(&rows, paint), all - open),
            (all, false) => {
                let can = rows.iter().filter(|row| row.is_repairable).count();
                format!("{}\n{all} found; --fix mends {can} of them\n", lines(&rows, paint))
            }
        };
        let json = json!({ "faults": rows.iter().map(Row::to_json).collect::<Vec<_>>() });
        Ok(Answer { success: open == 0, ..Answer::new(text, json) })
    }

    fn treat(&self, fault: Fault<'_>) -> Row {
        let (side, owner, what) = (fault.location.name(), fault.owner.clone(), fault.what());
        let is_repairable = fault.is_repairable();
        let mended = (self.fix && is_repairable).then(|| fault.repair().map_err(|error| error.to_cni()));
        Row { side, owner, what, is_repairable, mended }
    }
}

fn lines(rows: &[Row], paint: Paint) -> String {
    let cells = |row: &Row| {
        let state = match &row.mended {
            Some(Ok(())) => paint.good("mended"),
            Some(Err(error)) => paint.bad(&format!("not mended: {}", error.msg)),
            None if row.is_repairable => "can be mended".to_owned(),
            None => paint.bad("look at it"),
        };
        vec![row.side.to_owned(), row.owner.clone(), state, row.what.clone()]
    };
    table(&["WHERE", "WHOSE", "STATE", "WHAT"], &rows.iter().map(cells).collect::<Vec<_>>(), paint)
}

impl Row {
    fn to_json(&self) -> Value {
        let mut json = json!({
            "side": self.side,
            "owner": self.owner,
            "what": self.what,
            "canBeMended": self.is_repairable,
            "mended": matches!(self.mended, Some(Ok(()))),
        });
        if let Some(Err(error)) = &self.mended {
            json["error"] = error.to_json();
        }
        json
    }
}

//! An inconsistency of a node, with its repair.

use podwire_cni_plugin::{Finding, Result};

/// Where a fault was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Location {
    /// The plugins' ledger.
    Ledger,
    /// A runtime's record.
    Record,
    /// An address pool.
    Pool,
    /// A file of a plugin.
    File,
    /// A link, rule or set element of the node.
    Kernel,
    /// The network of a running pod.
    Pod,
}

impl Location {
    /// Its name in the output.
    pub fn name(self) -> &'static str {
        match self {
            Location::Ledger => "ledger",
            Location::Record => "record",
            Location::Pool => "pool",
            Location::File => "file",
            Location::Kernel => "kernel",
            Location::Pod => "pod",
        }
    }
}

/// One inconsistency.
#[derive(Debug)]
pub struct Fault<'p> {
    /// Where it was found.
    pub location: Location,
    /// The owner, as far as it is known: `network/container/interface`.
    pub owner: String,
    finding: Finding<'p>,
}

impl<'p> Fault<'p> {
    /// A fault without a repair.
    pub(crate) fn new(location: Location, owner: impl Into<String>, what: impl Into<String>) -> Fault<'p> {
        Fault::found(location, owner, Finding::new(what))
    }

    pub(crate) fn found(location: Location, owner: impl Into<String>, finding: Finding<'p>) -> Fault<'p> {
        Fault { location, owner: owner.into(), finding }
    }

    pub(crate) fn repaired_by(self, repair: impl FnOnce() -> Result<()> + 'p) -> Fault<'p> {
        Fault { finding: self.finding.repaired_by(repair), ..self }
    }

    /// The same fault, which is only reported.
    pub(crate) fn without_repair(self) -> Fault<'p> {
        let finding = Finding::new(self.what());
        Fault { finding, ..self }
    }

    /// Whether it has a repair.
    pub fn is_repairable(&self) -> bool {
        self.finding.is_repairable()
    }

    /// A description.
    pub fn what(&self) -> String {
        self.finding.to_string()
    }

    /// Repairs it.
    pub fn repair(self) -> Result<()> {
        self.finding.repair()
    }
}

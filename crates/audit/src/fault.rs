//! What is wrong on a node, and how to mend it.

use podwire_cni_plugin::{Finding, Result};

/// Which side tells of something that another does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The plugins' own account of what they did.
    Ledger,
    /// What a runtime remembers.
    Record,
    /// An address pool.
    Pool,
    /// A file of a plugin.
    File,
    /// Links, rules and elements on the node.
    Kernel,
    /// The network of a living pod.
    Pod,
}

impl Side {
    /// One word.
    pub fn name(self) -> &'static str {
        match self {
            Side::Ledger => "ledger",
            Side::Record => "record",
            Side::Pool => "pool",
            Side::File => "file",
            Side::Kernel => "kernel",
            Side::Pod => "pod",
        }
    }
}

/// One thing that is wrong.
#[derive(Debug)]
pub struct Fault<'p> {
    /// Where it shows.
    pub side: Side,
    /// Whose it is or was: `network/container/interface`, as far as that is known.
    pub owner: String,
    finding: Finding<'p>,
}

impl<'p> Fault<'p> {
    /// `what` is wrong with something of `owner`, and cannot be mended without more knowledge.
    pub(crate) fn new(side: Side, owner: impl Into<String>, what: impl Into<String>) -> Fault<'p> {
        Fault::found(side, owner, Finding::new(what))
    }

    pub(crate) fn found(side: Side, owner: impl Into<String>, finding: Finding<'p>) -> Fault<'p> {
        Fault { side, owner: owner.into(), finding }
    }

    pub(crate) fn mended_by(self, mend: impl FnOnce() -> Result<()> + 'p) -> Fault<'p> {
        Fault { finding: self.finding.mended_by(mend), ..self }
    }

    /// Whether [`mend`](Fault::mend) can do anything about it.
    pub fn can_be_mended(&self) -> bool {
        self.finding.can_be_mended()
    }

    /// What is wrong.
    pub fn what(&self) -> String {
        self.finding.to_string()
    }

    /// Mends it.
    pub fn mend(self) -> Result<()> {
        self.finding.mend()
    }
}

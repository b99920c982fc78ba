//! Sizes of the tables and of changes to them.

/// How much one apply changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Chains that were created, refilled or deleted.
    pub chains: usize,
    /// Sets and maps that were created or deleted.
    pub sets: usize,
    /// Elements that were added to or deleted from existing sets.
    pub elements: usize,
}

impl Change {
    /// Whether the kernel already had the desired state.
    pub fn is_empty(&self) -> bool {
        *self == Change::default()
    }
}

/// The number of objects in the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableSize {
    /// Chains.
    pub chains: usize,
    /// Rules in all chains.
    pub rules: usize,
    /// Sets and maps.
    pub sets: usize,
    /// Elements in all sets and maps.
    pub elements: usize,
}

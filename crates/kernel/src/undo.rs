//! Undo: each step that leaves something behind registers how to revert it. If the whole operation does not complete,
//! all steps are reverted in reverse order.

/// The registered steps; dropping it reverts them unless [`keep`](Undo::keep) was called.
#[must_use]
#[derive(Default)]
pub struct Undo<'a> {
    steps: Vec<Box<dyn FnOnce() + 'a>>,
}

impl<'a> Undo<'a> {
    /// No steps.
    pub fn new() -> Undo<'a> {
        Undo::default()
    }

    /// Registers how to revert the last step. It must not report errors: the user sees the error that caused the undo.
    pub fn push(&mut self, step: impl FnOnce() + 'a) {
        self.steps.push(Box::new(step));
    }

    /// The operation succeeded: nothing is reverted.
    pub fn keep(mut self) {
        self.steps.clear();
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        while let Some(step) = self.steps.pop() {
            step();
        }
    }
}

impl std::fmt::Debug for Undo<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Undo({} steps)", self.steps.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn steps_are_reverted_in_reverse_order_unless_kept() {
        let seen = RefCell::new(Vec::new());
        let mut undo = Undo::new();
        undo.push(|| seen.borrow_mut().push(1));
        undo.push(|| seen.borrow_mut().push(2));
        drop(undo);
        assert_eq!(*seen.borrow(), [2, 1]);
        let mut undo = Undo::new();
        undo.push(|| seen.borrow_mut().push(3));
        undo.keep();
        assert_eq!(*seen.borrow(), [2, 1]);
    }
}

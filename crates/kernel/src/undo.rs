//! Taking back. A step that leaves something behind says at once how to take it back; if the whole does
//! not come to its end, everything is taken back in reverse.

/// Steps that undo what was done so far; see [`keep`](Undo::keep).
#[must_use]
#[derive(Default)]
pub struct Undo<'a> {
    steps: Vec<Box<dyn FnOnce() + 'a>>,
}

impl<'a> Undo<'a> {
    /// Nothing done, nothing to undo.
    pub fn new() -> Undo<'a> {
        Undo::default()
    }

    /// Remembers how to take the last step back. It must not fail loudly: the error that the user sees is
    /// the one that made it necessary.
    pub fn push(&mut self, step: impl FnOnce() + 'a) {
        self.steps.push(Box::new(step));
    }

    /// All went well: nothing is taken back.
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
    fn steps_are_taken_back_in_reverse_unless_kept() {
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

//! The output of the demo.

use crate::paint::Paint;
use crate::table::{fitted, terminal_columns};

/// Prints the demo.
pub(super) struct Screen {
    paint: Paint,
}

impl Screen {
    pub fn new() -> Screen {
        Screen { paint: Paint::stdout() }
    }

    pub fn title(&self, text: &str) {
        println!("\n{}", self.paint.head(text));
    }

    pub fn line(&self, text: &str) {
        println!("  {text}");
    }

    /// A step that succeeded.
    pub fn done(&self, what: &str, how: &str) {
        println!("  {} {what:<42} {how}", self.paint.good("✓"));
    }

    pub fn table(&self, head: &[&str], rows: &[Vec<String>]) {
        // Each line is indented by two.
        let columns = terminal_columns().map(|columns| columns.saturating_sub(2));
        fitted(head, rows, self.paint, columns).lines().for_each(|line| self.line(line));
    }
}

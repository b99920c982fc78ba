//! What the audience sees: colour on a terminal, plain text in a pipe.

use std::io::IsTerminal;

/// Where the demo prints.
pub(super) struct Screen {
    colour: bool,
}

impl Screen {
    pub fn new() -> Screen {
        Screen { colour: std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        match self.colour {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_string(),
        }
    }

    pub fn title(&self, text: &str) {
        println!("\n{}", self.paint("1;36", text));
    }

    pub fn line(&self, text: &str) {
        println!("  {text}");
    }

    /// A step that went well.
    pub fn done(&self, what: &str, how: &str) {
        println!("  {} {what:<42} {}", self.paint("32", "✓"), self.paint("2", how));
    }

    /// Columns as wide as their widest cell; the first row is the head.
    pub fn table<const N: usize>(&self, rows: &[[String; N]]) {
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        for (n, row) in rows.iter().enumerate() {
            let cells = row.iter().enumerate().map(|(column, cell)| format!("{cell:<1$}", width(column)));
            let line = cells.collect::<Vec<_>>().join("  ");
            self.line(&if n == 0 { self.paint("1", line.trim_end()) } else { line.trim_end().to_string() });
        }
    }
}

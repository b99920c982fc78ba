//! Tables with aligned columns.

use crate::paint::Paint;

/// A table with a heading. Columns are as wide as their widest cell and two spaces apart.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>], paint: Paint) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(String::as_str);
        cells.chain(head.get(column).copied()).map(visible).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    let heading: Vec<_> = head.iter().map(|text| paint.head(text)).collect();
    let lines = std::iter::once(&heading).chain(rows);
    lines.map(|cells| line(cells, &widths)).collect()
}

fn line(cells: &[String], widths: &[usize]) -> String {
    let mut text = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        text += cell;
        text += &" ".repeat(width.saturating_sub(visible(cell)) + 2);
    }
    format!("{}\n", text.trim_end())
}

/// The width of a text on a terminal. Colour codes have no width.
fn visible(text: &str) -> usize {
    let mut parts = text.split('\x1b');
    let first = parts.next().unwrap_or_default().chars().count();
    first
        + parts.map(|part| part.split_once('m').map_or(part, |(_, rest)| rest).chars().count()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_without_trailing_spaces() {
        let rows =
            vec![vec!["a".into(), "long cell".into(), "x".into()], vec!["äöü".into(), "".into(), "".into()]];
        let text = "ONE  TWO        3\na    long cell  x\näöü\n";
        assert_eq!(table(&["ONE", "TWO", "3"], &rows, Paint::plain()), text);
    }

    #[test]
    fn colour_codes_have_no_width() {
        assert_eq!(visible("\x1b[32mok\x1b[0m"), 2);
        assert_eq!(visible("plain"), 5);
    }
}

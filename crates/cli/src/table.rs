//! Tables with aligned columns that fit the terminal.
//!
//! A table that is wider than the terminal gets narrower columns, the widest first: a cell continues on the next line at
//! a space, and a word that is too long is cut, which `…` shows. Output that is no terminal is never changed.

use std::os::fd::AsFd;

use crate::paint::Paint;

/// The spaces between two columns.
const GAP: usize = 2;
/// The width below which a column is not narrowed.
const NARROWEST: usize = 8;

/// A character and the colour code that applies to it, empty for none.
type Glyph<'c> = (char, &'c str);

/// A table with a heading, for standard output.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>], paint: Paint) -> String {
    fitted(head, rows, paint, terminal_columns())
}

/// The width of the terminal that standard output is, if it is one.
pub(crate) fn terminal_columns() -> Option<usize> {
    podwire_netlink::sys::terminal_columns(std::io::stdout().as_fd())
}

/// A table with a heading, at most `columns` wide.
pub(crate) fn fitted(head: &[&str], rows: &[Vec<String>], paint: Paint, columns: Option<usize>) -> String {
    let heading: Vec<String> = head.iter().map(|text| paint.head(text)).collect();
    let rows: Vec<Vec<Vec<Glyph<'_>>>> = std::iter::once(&heading)
        .chain(rows)
        .map(|row| row.iter().take(head.len()).map(|cell| glyphs(cell)).collect())
        .collect();
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(Vec::len).max();
    let mut widths: Vec<usize> = (0..head.len()).map(|column| width(column).unwrap_or(0)).collect();
    if let Some(columns) = columns {
        narrow(&mut widths, columns.saturating_sub(GAP * head.len().saturating_sub(1)));
    }
    rows.iter().map(|row| lines(row, &widths)).collect()
}

/// Takes columns from the widest until all fit.
fn narrow(widths: &mut [usize], available: usize) {
    while widths.iter().sum::<usize>() > available {
        match widths.iter_mut().max().filter(|widest| **widest > NARROWEST) {
            Some(widest) => *widest -= 1,
            None => return,
        }
    }
}

/// The lines of a row: as many as its longest cell needs.
fn lines(row: &[Vec<Glyph<'_>>], widths: &[usize]) -> String {
    let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| (wrap(cell, *width), width)).collect();
    let count = cells.iter().map(|(pieces, _)| pieces.len()).max().unwrap_or(1);
    let line = |at: usize| {
        let mut text = String::new();
        for (pieces, width) in &cells {
            let piece = pieces.get(at).map(Vec::as_slice).unwrap_or_default();
            text += &coloured(piece);
            text += &" ".repeat(width.saturating_sub(piece.len()) + GAP);
        }
        format!("{}\n", text.trim_end())
    };
    (0..count).map(line).collect()
}

/// The pieces of a cell, each at most `width` wide.
fn wrap<'c>(cell: &[Glyph<'c>], width: usize) -> Vec<Vec<Glyph<'c>>> {
    if cell.len() <= width {
        return vec![cell.to_vec()];
    }
    let mut pieces: Vec<Vec<Glyph<'c>>> = Vec::new();
    for word in cell.split(|(letter, _)| *letter == ' ').map(|word| cut(word, width)) {
        match pieces.last_mut() {
            Some(piece) if piece.len() + 1 + word.len() <= width => {
                // The space has the colour of what follows it.
                piece.push((' ', word.first().map_or("", |(_, code)| code)));
                piece.extend(word);
            }
            _ => pieces.push(word),
        }
    }
    pieces
}

/// A word without its end, or a path without its start, if it is too long.
fn cut<'c>(word: &[Glyph<'c>], width: usize) -> Vec<Glyph<'c>> {
    let Some(kept) = width.checked_sub(1).filter(|_| word.len() > width) else { return word.to_vec() };
    let (is_path, mark) = (word[0].0 == '/', [('…', "")]);
    if is_path {
        [&mark, &word[word.len() - kept..]].concat()
    } else {
        [&word[..kept], &mark].concat()
    }
}

/// The characters of a text with colour codes (`ESC [ CODE m`).
fn glyphs(text: &str) -> Vec<Glyph<'_>> {
    let mut parts = text.split('\x1b');
    let first = parts.next().unwrap_or_default().chars().map(|letter| (letter, ""));
    let coloured = parts.flat_map(|part| {
        let (code, rest) = part.strip_prefix('[').and_then(|part| part.split_once('m')).unwrap_or(("", part));
        let code = if code == "0" { "" } else { code };
        rest.chars().map(move |letter| (letter, code))
    });
    first.chain(coloured).collect()
}

/// The text with colour codes.
fn coloured(glyphs: &[Glyph<'_>]) -> String {
    let mut text = String::new();
    for run in glyphs.chunk_by(|one, next| one.1 == next.1) {
        let letters: String = run.iter().map(|(letter, _)| letter).collect();
        text += &match run[0].1 {
            "" => letters,
            code => format!("\x1b[{code}m{letters}\x1b[0m"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(head: &[&str], row: &[&str], columns: Option<usize>) -> String {
        fitted(head, &[row.iter().map(ToString::to_string).collect()], Paint::plain(), columns)
    }

    #[test]
    fn columns_are_aligned_without_trailing_spaces() {
        let rows =
            vec![vec!["a".into(), "long cell".into(), "x".into()], vec!["äöü".into(), "".into(), "".into()]];
        let text = "ONE  TWO        3\na    long cell  x\näöü\n";
        assert_eq!(fitted(&["ONE", "TWO", "3"], &rows, Paint::plain(), None), text);
    }

    #[test]
    fn a_wide_table_is_as_wide_as_the_terminal() {
        let row = ["pods", "/run/netns/4f1c2e9a0b1c", "10.1.0.5/16 fd00::5/64", "4f1c2e9a0b1c4f1c2e9a"];
        let head = ["NETWORK", "NAMESPACE", "ADDRESSES", "ID"];
        let wide = plain(&head, &row, Some(100));
        assert_eq!(wide, plain(&head, &row, None), "a table that fits is not changed");
        let text = plain(&head, &row, Some(53));
        assert_eq!(
            text,
            "NETWORK  NAMESPACE       ADDRESSES      ID\n\
             pods     …/4f1c2e9a0b1c  10.1.0.5/16    4f1c2e9a0b1c…\n                         fd00::5/64\n"
        );
        let narrow = plain(&head, &row, Some(3));
        assert!(narrow.lines().all(|line| line.chars().count() <= 4 * NARROWEST + 3 * GAP), "{narrow}");
    }

    #[test]
    fn colours_continue_on_the_next_line_and_have_no_width() {
        let red = "\x1b[31mnot ready at all\x1b[0m (50)";
        assert_eq!(glyphs(red).len(), "not ready at all (50)".len());
        assert_eq!(coloured(&glyphs(red)), red);
        let text = plain(&["STATE"], &[red], Some(10));
        assert_eq!(text, "STATE\n\x1b[31mnot ready\x1b[0m\n\x1b[31mat all\x1b[0m\n(50)\n");
    }
}

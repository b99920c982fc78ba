//! The tokens of a selector.

/// A word and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub at: usize,
    pub word: Word<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word<'a> {
    Label(&'a str),
    Text(&'a str),
    Has(&'a str),
    All,
    Global,
    Not,
    And,
    Or,
    Equal,
    Unequal,
    Contains,
    StartsWith,
    EndsWith,
    In,
    NotIn,
    Open,
    Close,
    OpenSet,
    CloseSet,
    Comma,
}

/// A syntax error, and its position in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SyntaxError {
    pub at: usize,
    pub why: &'static str,
}

/// Splits a selector into tokens.
pub(super) fn split(text: &str) -> Result<Vec<Token<'_>>, SyntaxError> {
    let mut tokens: Vec<Token<'_>> = Vec::new();
    let mut rest = text.trim_start_matches([' ', '\t']);
    while !rest.is_empty() {
        let at = text.len() - rest.len();
        let after_label = matches!(tokens.last(), Some(Token { word: Word::Label(_), .. }));
        let (word, left) = match rest.as_bytes()[0] {
            quote @ (b'"' | b'\'') => literal(&rest[1..], char::from(quote))
                .ok_or(SyntaxError { at, why: "the text does not end" })?,
            _ => match sign(rest) {
                Some(found) => found,
                None if rest.starts_with(['=', '&', '|']) => {
                    return Err(SyntaxError { at, why: "expected ==, && or ||" })
                }
                None if after_label => {
                    operator(rest).ok_or(SyntaxError { at, why: "expected an operator after a label" })?
                }
                None => name(rest).map_err(|why| SyntaxError { at, why })?,
            },
        };
        tokens.push(Token { at, word });
        rest = left.trim_start_matches([' ', '\t']);
    }
    Ok(tokens)
}

fn literal(rest: &str, quote: char) -> Option<(Word<'_>, &str)> {
    rest.split_once(quote).map(|(text, left)| (Word::Text(text), left))
}

fn sign(rest: &str) -> Option<(Word<'_>, &str)> {
    const SIGNS: &[(&str, Word<'_>)] = &[
        ("==", Word::Equal),
        ("!=", Word::Unequal),
        ("&&", Word::And),
        ("||", Word::Or),
        ("!", Word::Not),
        ("(", Word::Open),
        (")", Word::Close),
        ("{", Word::OpenSet),
        ("}", Word::CloseSet),
        (",", Word::Comma),
    ];
    SIGNS.iter().find_map(|(sign, word)| Some((*word, rest.strip_prefix(sign)?)))
}

/// Operators that are words occur only after a label, so that labels may have the same names.
fn operator(rest: &str) -> Option<(Word<'_>, &str)> {
    const OPERATORS: &[(&str, &str, Word<'_>)] = &[
        ("contains", "", Word::Contains),
        ("starts", "with", Word::StartsWith),
        ("ends", "with", Word::EndsWith),
        ("not", "in", Word::NotIn),
        ("in", "", Word::In),
    ];
    OPERATORS.iter().find_map(|(first, second, word)| {
        let left = rest.strip_prefix(first)?.trim_start_matches([' ', '\t']);
        Some((*word, left.strip_prefix(second)?))
    })
}

fn name(rest: &str) -> Result<(Word<'_>, &str), &'static str> {
    let call = |call: &str| rest.strip_prefix(call).map(|left| left.trim_start_matches([' ', '\t']));
    if let Some(left) = call("has(") {
        let (label, left) = label(left).ok_or("expected a label in has(…)")?;
        let left = left.trim_start_matches([' ', '\t']).strip_prefix(')').ok_or("has( is not closed")?;
        return Ok((Word::Has(label), left));
    }
    for (word, text) in [(Word::All, "all("), (Word::Global, "global(")] {
        if let Some(left) = call(text) {
            return Ok((word, left.strip_prefix(')').ok_or("all() and global() take no argument")?));
        }
    }
    label(rest).map(|(label, left)| (Word::Label(label), left)).ok_or("unexpected characters")
}

/// A label's name: at most 512 letters, digits and `_./-`.
fn label(rest: &str) -> Option<(&str, &str)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
    (1..=512).contains(&end).then(|| rest.split_at(end))
}

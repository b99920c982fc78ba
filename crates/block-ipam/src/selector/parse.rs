//! The parser. `||` binds weakest, then `&&`, then `!`.

use std::collections::BTreeSet;

use super::term::{Comparison, Term};
use super::token::{split, SyntaxError, Token, Word};

/// The maximum nesting. Selectors come from objects that users write, and must not overflow the stack.
const MAX_DEPTH: usize = 64;

pub(super) fn selector(text: &str) -> Result<Term, SyntaxError> {
    let tokens = split(text)?;
    if tokens.is_empty() {
        return Ok(Term::All);
    }
    let mut parser = Parser { tokens: &tokens, next: 0, end: text.len(), depth: 0 };
    let term = parser.any()?;
    if parser.peek().is_some() {
        return parser.fail("unexpected content after the selector");
    }
    Ok(term)
}

struct Parser<'a> {
    tokens: &'a [Token<'a>],
    next: usize,
    end: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Word<'a>> {
        self.tokens.get(self.next).map(|token| token.word)
    }

    fn at(&self) -> usize {
        self.tokens.get(self.next).map_or(self.end, |token| token.at)
    }

    /// An error at the next word.
    fn fail<T>(&self, why: &'static str) -> Result<T, SyntaxError> {
        Err(SyntaxError { at: self.at(), why })
    }

    fn take(&mut self) -> Option<Word<'a>> {
        let word = self.peek();
        self.next += usize::from(word.is_some());
        word
    }

    /// Takes the next word if it equals `word`.
    fn skip(&mut self, word: Word<'_>) -> bool {
        let is_next = self.peek() == Some(word);
        self.next += usize::from(is_next);
        is_next
    }

    fn any(&mut self) -> Result<Term, SyntaxError> {
        let mut terms = vec![self.every()?];
        while self.skip(Word::Or) {
            terms.push(self.every()?);
        }
        Ok(one_or(terms, Term::Any))
    }

    fn every(&mut self) -> Result<Term, SyntaxError> {
        let mut terms = vec![self.operation()?];
        while self.skip(Word::And) {
            terms.push(self.operation()?);
        }
        Ok(one_or(terms, Term::Every))
    }

    fn operation(&mut self) -> Result<Term, SyntaxError> {
        let mut negated = false;
        while self.skip(Word::Not) {
            negated = !negated;
        }
        let at = self.at();
        let term = match self.take() {
            Some(Word::All) => Term::All,
            Some(Word::Global) => Term::Global,
            Some(Word::Has(label)) => Term::Has(label.into()),
            Some(Word::Label(label)) => self.comparison(label.into())?,
            Some(Word::Open) => self.parentheses(at)?,
            _ => return Err(SyntaxError { at, why: "expected a label, has(…), all() or a parenthesis" }),
        };
        Ok(if negated { Term::Not(Box::new(term)) } else { term })
    }

    fn parentheses(&mut self, at: usize) -> Result<Term, SyntaxError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(SyntaxError { at, why: "too many nested parentheses" });
        }
        let term = self.any()?;
        self.depth -= 1;
        if !self.skip(Word::Close) {
            return self.fail("expected )");
        }
        Ok(term)
    }

    fn comparison(&mut self, label: String) -> Result<Term, SyntaxError> {
        let at = self.at();
        let comparison = match self.take() {
            Some(Word::Equal) => Comparison::Equal,
            Some(Word::Unequal) => Comparison::Unequal,
            Some(Word::Contains) => Comparison::Contains,
            Some(Word::StartsWith) => Comparison::StartsWith,
            Some(Word::EndsWith) => Comparison::EndsWith,
            Some(Word::In) => return Ok(Term::In(label, self.set()?)),
            Some(Word::NotIn) => return Ok(Term::NotIn(label, self.set()?)),
            _ => return Err(SyntaxError { at, why: "expected an operator after a label" }),
        };
        let at = self.at();
        match self.take() {
            Some(Word::Text(text)) => Ok(Term::Is(label, comparison, text.into())),
            _ => Err(SyntaxError { at, why: "expected a quoted text" }),
        }
    }

    /// A set, which may end with a comma.
    fn set(&mut self) -> Result<BTreeSet<String>, SyntaxError> {
        if !self.skip(Word::OpenSet) {
            return self.fail("expected a set: {\"a\", \"b\"}");
        }
        let mut texts = BTreeSet::new();
        while let Some(Word::Text(text)) = self.peek() {
            texts.insert(text.to_owned());
            self.next += 1;
            if !self.skip(Word::Comma) {
                break;
            }
        }
        if !self.skip(Word::CloseSet) {
            return self.fail("expected }");
        }
        Ok(texts)
    }
}

fn one_or(mut terms: Vec<Term>, many: fn(Vec<Term>) -> Term) -> Term {
    match (terms.len(), terms.pop()) {
        (1, Some(only)) => only,
        (_, last) => {
            terms.extend(last);
            many(terms)
        }
    }
}

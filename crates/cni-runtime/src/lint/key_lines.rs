//! The line of each key of a JSON document. The parser that decodes the document does not keep positions.

use std::collections::HashMap;

/// The line (from 1) of every key, by the key's path: `plugins[0].ipam.type`. The document must be valid JSON.
pub(super) fn key_lines(text: &[u8]) -> HashMap<String, usize> {
    let mut scan = Scan { text, at: 0, line: 1, lines: HashMap::new() };
    scan.value("");
    scan.lines
}

struct Scan<'t> {
    text: &'t [u8],
    at: usize,
    line: usize,
    lines: HashMap<String, usize>,
}

impl Scan<'_> {
    fn next(&mut self) -> Option<u8> {
        let byte = *self.text.get(self.at)?;
        self.at += 1;
        self.line += usize::from(byte == b'\n');
        Some(byte)
    }

    /// The next byte that is no white space, without taking it.
    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.next();
        }
        self.text.get(self.at).copied()
    }

    fn value(&mut self, path: &str) {
        match self.peek() {
            Some(b'{') => self.object(path),
            Some(b'[') => self.array(path),
            Some(b'"') => drop(self.string()),
            _ => {
                let ends = |byte: &u8| matches!(byte, b',' | b']' | b'}') || byte.is_ascii_whitespace();
                while self.text.get(self.at).is_some_and(|byte| !ends(byte)) {
                    self.next();
                }
            }
        }
    }

    fn object(&mut self, path: &str) {
        self.next();
        while self.peek() == Some(b'"') {
            let line = self.line;
            let key = self.string();
            let path = if path.is_empty() { key } else { format!("{path}.{key}") };
            self.lines.insert(path.clone(), line);
            if self.peek() == Some(b':') {
                self.next();
            }
            self.value(&path);
            if self.peek() == Some(b',') {
                self.next();
                self.peek();
            }
        }
        self.next();
    }

    fn array(&mut self, path: &str) {
        self.next();
        for index in 0.. {
            if matches!(self.peek(), Some(b']') | None) {
                break;
            }
            self.value(&format!("{path}[{index}]"));
            if self.peek() != Some(b',') {
                break;
            }
            self.next();
        }
        self.next();
    }

    fn string(&mut self) -> String {
        let begin = self.at;
        self.next();
        while let Some(byte) = self.next() {
            match byte {
                b'\\' => drop(self.next()),
                b'"' => break,
                _ => {}
            }
        }
        serde_json::from_slice(&self.text[begin..self.at]).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_its_line() {
        let text = "{\n \"name\": \"a}\\\"\\n{\", \"plugins\": [\n  {\"type\": \"x\",\n   \"list\": [[1, {\"d\":\n  null}], []],\
                    \n   \"\\u0061b\" :true}\n ,{ \"type\":-1.5e3}]\n}";
        let lines = key_lines(text.as_bytes());
        let line = |path: &str| lines.get(path).copied();
        assert_eq!((line("name"), line("plugins"), line("plugins[0].type")), (Some(2), Some(2), Some(3)));
        assert_eq!((line("plugins[0].list"), line("plugins[0].list[0][1].d")), (Some(4), Some(4)));
        assert_eq!((line("plugins[0].ab"), line("plugins[1].type")), (Some(6), Some(7)));
        assert_eq!(lines.len(), 7);
    }

    #[test]
    fn a_broken_document_ends_too() {
        let text = br#"{"a": [1, {"b": "c\"}"}, [], {}], "d": -1e5}"#;
        for end in 0..text.len() {
            key_lines(&text[..end]);
            key_lines(&text[end..]);
        }
    }
}

//! The files of the guides: tests use exactly these.

use podwire_tests::project;

/// The code blocks of this language on a page of `docs/`.
pub(crate) fn blocks(page: &str, language: &str) -> Vec<String> {
    let text = std::fs::read_to_string(project(page)).expect("the guide");
    let parts = text.split(&format!("```{language}\n")).skip(1).map(String::from).collect::<Vec<_>>();
    parts.iter().filter_map(|rest| rest.split("```").next()).map(String::from).collect()
}

/// The first code block that contains this text.
pub(crate) fn block(page: &str, language: &str, word: &str) -> String {
    let found = blocks(page, language).into_iter().find(|block| block.contains(word));
    found.unwrap_or_else(|| panic!("{page} has no block of {language} with {word}"))
}

//! What is wrong with network configs and records, as text and as JSON.

use podwire_cni_runtime::{Problem, Warning};
use serde_json::{json, Value};

use crate::paint::Paint;

/// The warnings, one in a line.
pub(super) fn warning_lines(warnings: &[Warning], paint: Paint) -> String {
    warnings.iter().map(|one| format!("{} {one}\n", paint.bad("warning:"))).collect()
}

pub(super) fn warning_json(warning: &Warning) -> Value {
    json!({
        "file": warning.file,
        "line": warning.line,
        "key": warning.key,
        "text": warning.text,
        "suggestion": warning.suggestion,
    })
}

/// The files that cannot be read, one in a line.
pub(super) fn problem_lines<'p>(problems: impl IntoIterator<Item = &'p Problem>, paint: Paint) -> String {
    problems.into_iter().map(|problem| format!("{} {problem}\n", paint.bad("problem:"))).collect()
}

pub(crate) fn problem_json(problem: &Problem) -> Value {
    json!({ "file": problem.path, "error": problem.error.to_cni().to_json() })
}

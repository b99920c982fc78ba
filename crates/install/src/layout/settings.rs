//! Reads TOML configs of runtimes.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::{Error, Result, Root};

/// Reads a file of the node; `None` if it does not exist.
pub(super) fn load(root: &Root, path: &Path) -> Result<Option<Table>> {
    let place = root.target(path);
    let text = match fs::read_to_string(&place) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::file("read", &place)(error)),
    };
    let invalid = |error: toml::de::Error| Error::Config { path: place.clone(), message: error.to_string() };
    text.parse().map(Some).map_err(invalid)
}

/// The files of a directory with this ending, sorted.
pub(super) fn files(root: &Root, folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root.target(folder)).into_iter().flatten().flatten();
    let names =
        entries.map(|entry| entry.file_name()).filter(|name| name.to_string_lossy().ends_with(ending));
    let mut files: Vec<_> = names.map(|name| folder.join(name)).collect();
    files.sort();
    files
}

/// The table at the end of `keys`.
pub(super) fn table<'t>(from: &'t Table, keys: &[&str]) -> Option<&'t Table> {
    keys.iter().try_fold(from, |table, key| table.get(*key)?.as_table())
}

/// A string that is not empty.
pub(super) fn text(from: &Table, key: &str) -> Option<String> {
    from.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

/// A list of paths that is not empty.
pub(super) fn paths(from: &Table, key: &str) -> Option<Vec<PathBuf>> {
    let list: Vec<PathBuf> =
        from.get(key)?.as_array()?.iter().filter_map(Value::as_str).map(PathBuf::from).collect();
    (!list.is_empty()).then_some(list)
}

/// Merges a later file: table by table if `deep`, otherwise a table of the later file replaces the whole table.
pub(super) fn merge(to: &mut Table, from: Table, deep: bool) {
    for (key, value) in from {
        match (to.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) if deep => merge(old, new, deep),
            (_, value) => {
                to.insert(key, value);
            }
        }
    }
}

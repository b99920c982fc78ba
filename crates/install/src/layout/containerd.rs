//! containerd and distributions that bundle it: `config.toml` with its imports, in every schema.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::settings::{files, load, merge, paths, table, text};
use super::{Layout, Runtime, Selection};
use crate::{Result, Root};

pub(super) const CONFIG: &str = "/etc/containerd/config.toml";

/// The names of the CRI plugin: since 2.0, since 1.3 (schema 2), before (schema 1).
const NAMES: [&str; 3] = ["io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri"];

pub(super) fn layout(root: &Root) -> Result<Layout> {
    read(root, Path::new(CONFIG), Layout::default_of(Runtime::Containerd))
}

/// Reads the config at `path`; what it does not set is taken from `usual`.
pub(super) fn read(root: &Root, path: &Path, usual: Layout) -> Result<Layout> {
    let Some(config) = with_imports(root, path)? else { return Ok(usual) };
    let mut layout = Layout { config: Some(path.to_owned()), ..usual };
    let is_off = |name: &str| {
        let list = config.get("disabled_plugins").and_then(Value::as_array);
        list.is_some_and(|list| list.iter().any(|value| value.as_str() == Some(name)))
    };
    if NAMES.iter().any(|name| is_off(name)) {
        layout.notes.push(format!(
            "{}: {} has the CRI plugin in disabled_plugins: kubelet cannot use this containerd",
            layout.runtime.name(),
            path.display()
        ));
    }
    let Some(cni) = NAMES.iter().find_map(|name| table(&config, &["plugins", name, "cni"])) else {
        return Ok(layout);
    };
    if let Some(folders) =
        paths(cni, "bin_dirs").or_else(|| text(cni, "bin_dir").map(|folder| vec![folder.into()]))
    {
        layout.bin_dirs = folders;
    }
    if let Some(folder) = text(cni, "conf_dir") {
        layout.conf_dir = folder.into();
    }
    layout.selection = match cni.get("max_conf_num").and_then(Value::as_integer) {
        Some(0) => Selection::First(usize::MAX),
        Some(most) => Selection::First(usize::try_from(most).unwrap_or(1)),
        None => layout.selection,
    };
    Ok(layout)
}

/// The file and its imports; later files win. Before 2.0 a plugin's table in an import replaced the whole table; since then
/// (schema 3) the tables are merged.
fn with_imports(root: &Root, path: &Path) -> Result<Option<Table>> {
    let Some(mut config) = load(root, path)? else { return Ok(None) };
    let deep = config.get("version").and_then(Value::as_integer).is_some_and(|version| version >= 3);
    let mut seen = BTreeSet::from([path.to_owned()]);
    let mut waiting = imports(root, path, &config);
    while !waiting.is_empty() {
        let next = waiting.remove(0);
        if !seen.insert(next.clone()) {
            continue;
        }
        let Some(mut imported) = load(root, &next)? else { continue };
        waiting.extend(imports(root, &next, &imported));
        let Some(Value::Table(plugins)) = imported.remove("plugins") else { continue };
        let all = config.entry("plugins").or_insert_with(|| Value::Table(Table::new()));
        if let Value::Table(all) = all {
            merge(all, plugins, deep);
        }
    }
    Ok(Some(config))
}

fn imports(root: &Root, path: &Path, config: &Table) -> Vec<PathBuf> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let named = paths(config, "imports").unwrap_or_default();
    named.into_iter().flat_map(|import| expand(root, folder.join(import))).collect()
}

/// Expands one `*` in a file name, as in `/etc/containerd/conf.d/*.toml`.
fn expand(root: &Root, pattern: PathBuf) -> Vec<PathBuf> {
    let name = pattern.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some((begin, end)) = name.split_once('*') else { return vec![pattern] };
    let begins = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(begin) && name.len() >= begin.len() + end.len()
    };
    let folder = pattern.parent().unwrap_or(Path::new("/"));
    files(root, folder, end).into_iter().filter(begins).collect()
}

//! Mistakes in network configs that no plugin can see: keys that nothing reads, misspelt plugin types, and networks that
//! overlap.
//!
//! Decoding skips unknown keys, as Go does, so a misspelt key has no effect. A plugin of the registry names its keys
//! ([`Plugin::keys`](podwire_cni_plugin::Plugin::keys)). Other plugins, the contents of `args`, and keys that begin with `_`
//! or contain `/` (comments, keys of a vendor) are not checked. A type that neither the registry nor a plugin directory has
//! is reported only if it resembles one of the registry: the config may be for another machine.

mod key_lines;
mod overlap;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};

use podwire_cni_spec::suggestion::nearest;
use podwire_cni_spec::{json, NetworkList};
use serde_json::{Map, Value};

use crate::{Network, Runtime};

/// The keys of every plugin. `readiness` is read for all plugins of the registry.
const COMMON: &[&str] =
    &["type", "name", "cniVersion", "capabilities", "args", "runtimeConfig", "prevResult", "readiness"];
/// Sections whose keys are for others too.
const OPEN: &[&str] = &["args", "runtimeConfig", "prevResult"];

/// A probable mistake in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The file.
    pub file: PathBuf,
    /// The line of the key, from 1.
    pub line: usize,
    /// The path of the key: `plugins[0].isDefaultGatway`.
    pub key: String,
    /// What is wrong.
    pub text: String,
    /// The key that was probably meant.
    pub suggestion: Option<String>,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Warning { file, line, key, text, suggestion } = self;
        write!(f, "{}:{line}: {key}: {text}", file.display())?;
        match suggestion {
            Some(name) => write!(f, "; did you mean {name}?"),
            None => Ok(()),
        }
    }
}

impl Runtime<'_> {
    /// Keys of the network's files that neither the runtime nor the plugin reads, misspelt plugin types, and address ranges
    /// that overlap with those of another network in `all`.
    pub fn lint(&self, network: &Network, all: &[Network]) -> Vec<Warning> {
        let mut found = lint_file(self, &network.path);
        found.extend(network.plugin_files().iter().flat_map(|file| lint_file(self, file)));
        found.extend(overlaps(network, all));
        found
    }
}

fn overlaps(network: &Network, all: &[Network]) -> Vec<Warning> {
    let own = overlap::ranges(network);
    if own.is_empty() {
        return Vec::new();
    }
    let lines = std::fs::read(&network.path).map(|bytes| key_lines::key_lines(&bytes)).unwrap_or_default();
    let others = all.iter().filter(|other| other.list.name != network.list.name);
    let others: Vec<_> = others
        .flat_map(|other| overlap::ranges(other).into_iter().map(move |range| (other, range)))
        .collect();
    let warning = |range: &overlap::Range, other: &Network| {
        // The file of a single plugin has no list.
        let key = range.key.trim_start_matches("plugins[0].");
        let key = if crate::folder::is_list(&network.path) { &range.key } else { key };
        let text = format!(
            "the addresses overlap with those of network {:?} in {}: pods of both can get the same address",
            &*other.list.name,
            other.path.display()
        );
        let line = lines.get(key).copied().unwrap_or(1);
        Warning { file: network.path.clone(), line, key: key.to_owned(), text, suggestion: None }
    };
    let pairs = own.iter().flat_map(|range| others.iter().map(move |(other, theirs)| (range, other, theirs)));
    pairs
        .filter(|(range, _, theirs)| range.overlaps(theirs))
        .map(|(range, other, _)| warning(range, other))
        .collect()
}

/// The unknown keys and types of a file. A file that cannot be read has none: loading the network reports it.
fn lint_file(runtime: &Runtime<'_>, path: &Path) -> Vec<Warning> {
    let Ok(bytes) = std::fs::read(path) else { return Vec::new() };
    let Ok(Value::Object(document)) = json::parse(&bytes) else { return Vec::new() };
    let mut lint = Lint { file: path, lines: key_lines::key_lines(&bytes), runtime, found: Vec::new() };
    match json::get(&Value::Object(document.clone()), "plugins").and_then(Value::as_array) {
        Some(plugins) if crate::folder::is_list(path) => {
            lint.object(
                &document,
                &Place::default(),
                &Known { plugin: None, paths: NetworkList::KEYS.into() },
            );
            for (index, plugin) in plugins.iter().enumerate() {
                lint.plugin(plugin, &format!("plugins[{index}]"), "");
            }
        }
        _ => lint.plugin(&Value::Object(document), "", ""),
    }
    lint.found
}

/// The keys that a plugin and its IPAM plugin read.
struct Known<'k> {
    plugin: Option<&'k str>,
    paths: Vec<&'static str>,
}

impl Known<'_> {
    /// The names of the keys below a path.
    fn below(&self, path: &str) -> BTreeSet<&'static str> {
        let child = |known: &&'static str| {
            let rest = known.strip_prefix(path)?;
            let rest = if path.is_empty() { rest } else { rest.strip_prefix('.')? };
            rest.split(['.', '[']).next()
        };
        self.paths.iter().filter_map(child).collect()
    }
}

/// Where an object is.
#[derive(Default)]
struct Place {
    /// As the file spells it: `plugins[0].vlanTrunk[2]`.
    path: String,
    /// As in [`Keys`](podwire_cni_plugin::Keys): `vlanTrunk[]`.
    pattern: String,
}

impl Place {
    fn key(&self, key: &str, name: &str) -> Place {
        let join = |path: &str, key: &str| if path.is_empty() { key.into() } else { format!("{path}.{key}") };
        Place { path: join(&self.path, key), pattern: join(&self.pattern, name) }
    }

    fn index(&self, index: usize) -> Place {
        Place { path: format!("{}[{index}]", self.path), pattern: format!("{}[]", self.pattern) }
    }
}

struct Lint<'l> {
    file: &'l Path,
    lines: HashMap<String, usize>,
    runtime: &'l Runtime<'l>,
    found: Vec<Warning>,
}

impl Lint<'_> {
    /// Checks a plugin's config at `path`. `default` is its type if it has none.
    fn plugin(&mut self, config: &Value, path: &str, default: &str) {
        let text = |key: &str| json::get(config, key).and_then(Value::as_str);
        let kind = text("type").unwrap_or(default);
        let place = Place { path: path.to_owned(), pattern: String::new() };
        self.plugin_type(kind, place.key("type", "").path);
        let registry = self.runtime.registry;
        let Some(keys) = registry.find(kind).and_then(|plugin| plugin.keys()) else { return };
        let Some(object) = config.as_object() else { return };
        let mut known =
            Known { plugin: Some(kind), paths: COMMON.iter().copied().chain(keys.iter()).collect() };
        let mut capabilities_are_known = keys.delegate.is_none();
        if known.below("").contains("ipam") {
            let ipam =
                json::get(config, "ipam").and_then(|ipam| json::get(ipam, "type")).and_then(Value::as_str);
            let ipam = ipam.filter(|ipam| !ipam.is_empty() && *ipam != kind);
            if let Some(ipam) = ipam {
                self.plugin_type(ipam, place.key("ipam", "").key("type", "").path);
            }
            match ipam.map(|ipam| registry.find(ipam).and_then(|plugin| plugin.keys())) {
                Some(Some(keys)) => known.paths.extend(keys.iter().chain(["ipam.type"])),
                // Keys of an IPAM plugin of another program.
                Some(None) => {
                    known.paths.retain(|path| !path.starts_with("ipam."));
                    known.paths.push("ipam");
                    capabilities_are_known = false;
                }
                None => {}
            }
        }
        self.object(object, &place, &known);
        if capabilities_are_known {
            self.capabilities(config, &place, &known);
        }
        if let Some((key, default)) = keys.delegate {
            if let Some(delegate) = json::get(config, key) {
                self.plugin(delegate, &place.key(key, key).path, default);
            }
        }
    }

    /// Reports a type that is not installed and resembles one of the registry.
    fn plugin_type(&mut self, kind: &str, key: String) {
        let Runtime { registry, path, .. } = self.runtime;
        let is_installed = registry.find(kind).is_some() || path.iter().any(|dir| dir.join(kind).is_file());
        let known = registry.plugins().iter().map(|plugin| plugin.name());
        if let (false, Some(meant)) = (is_installed, nearest(kind, known)) {
            self.report(key, format!("no plugin {kind:?} is installed"), Some(meant.to_owned()));
        }
    }

    /// Each capability is a key of `runtimeConfig`.
    fn capabilities(&mut self, config: &Value, place: &Place, known: &Known<'_>) {
        let Some(Value::Object(on)) = json::get(config, "capabilities") else { return };
        let taken = known.below("runtimeConfig");
        for key in on.keys().filter(|key| !is_foreign(key) && !taken.contains(key.as_str())) {
            let path = place.key("capabilities", "").key(key, "").path;
            let near = nearest(key, taken.iter().copied()).map(str::to_owned);
            self.report_unknown(path, known, "capability", near);
        }
    }

    fn object(&mut self, object: &Map<String, Value>, place: &Place, known: &Known<'_>) {
        let names = known.below(&place.pattern);
        if names.is_empty() || OPEN.contains(&place.pattern.as_str()) {
            return;
        }
        for (key, value) in object {
            let is_name = |name: &&&str| match name.strip_suffix('*') {
                Some(begin) => key.starts_with(begin),
                None => name.eq_ignore_ascii_case(key),
            };
            match names.iter().find(is_name) {
                Some(name) => self.value(value, &place.key(key, name), known),
                None if is_foreign(key) => {}
                None => {
                    let elsewhere = || known.paths.iter().find(|path| last(path).eq_ignore_ascii_case(key));
                    let near = nearest(key, names.iter().copied()).or_else(|| elsewhere().copied());
                    self.report_unknown(place.key(key, "").path, known, "key", near.map(str::to_owned));
                }
            }
        }
    }

    fn value(&mut self, value: &Value, place: &Place, known: &Known<'_>) {
        match value {
            Value::Object(object) => self.object(object, place, known),
            Value::Array(items) => {
                let each = items.iter().enumerate();
                each.for_each(|(index, item)| self.value(item, &place.index(index), known));
            }
            _ => {}
        }
    }

    fn report_unknown(&mut self, key: String, known: &Known<'_>, what: &str, suggestion: Option<String>) {
        let whose = known.plugin.unwrap_or("a network list");
        self.report(key, format!("{whose} has no such {what}, so it has no effect"), suggestion);
    }

    fn report(&mut self, key: String, text: String, suggestion: Option<String>) {
        let line = self.lines.get(&key).copied().unwrap_or(1);
        self.found.push(Warning { file: self.file.to_owned(), line, key, text, suggestion });
    }
}

/// Whether a key is a comment, or a vendor's, such as `cni.dev/valid-attachments`.
fn is_foreign(key: &str) -> bool {
    key.starts_with(['_', '#']) || key.contains('/')
}

fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

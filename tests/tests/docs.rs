//! Checks of the documents: plugins accept the examples, links and commands exist, and the promises are those that the
//! benchmark enforces.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use podwire_tests::{can_serve, ours, project, types, Invocation, Node, Pod};
use serde_json::{json, Value};

/// One document.
struct Document {
    path: PathBuf,
    text: String,
}

impl Document {
    fn read(path: PathBuf) -> Document {
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Document { path, text }
    }

    fn name(&self) -> String {
        self.path.strip_prefix(project(".")).unwrap_or(&self.path).display().to_string()
    }

    /// The code blocks: their language, the number of their first line, and their lines.
    fn blocks(&self) -> Vec<(String, usize, String)> {
        let mut blocks: Vec<(String, usize, String)> = Vec::new();
        let mut inside = false;
        for (number, line) in self.text.lines().enumerate() {
            match line.trim_start().strip_prefix("```") {
                Some(_) if inside => inside = false,
                Some(language) => {
                    inside = true;
                    blocks.push((language.trim().into(), number + 2, String::new()));
                }
                None if inside => {
                    let block = &mut blocks.last_mut().expect("a block that was begun").2;
                    *block += &format!("{line}\n");
                }
                None => {}
            }
        }
        assert!(!inside, "{}: a block of code does not end", self.name());
        blocks
    }

    /// The paragraphs outside of code blocks.
    fn paragraphs(&self) -> Vec<String> {
        let mut prose = String::new();
        let mut inside = false;
        for line in self.text.lines() {
            if line.trim_start().starts_with("```") {
                inside = !inside;
            } else if !inside {
                prose += &format!("{line}\n");
            }
        }
        prose.split("\n\n").map(String::from).collect()
    }

    /// Inline code.
    fn quoted(&self) -> Vec<String> {
        let within = |paragraph: &String| -> Vec<String> {
            let words = paragraph.split('`').skip(1).step_by(2);
            words.map(|code| code.replace('\n', " ")).collect()
        };
        self.paragraphs().iter().flat_map(within).collect()
    }

    /// The targets of links.
    fn links(&self) -> Vec<String> {
        let code = |paragraph: &String| paragraph.split('`').step_by(2).collect::<Vec<_>>().join("code");
        let prose: Vec<String> = self.paragraphs().iter().map(code).collect();
        let ends = prose.iter().flat_map(|paragraph| paragraph.split("](").skip(1));
        ends.filter_map(|rest| rest.split_once(')')).map(|(link, _)| link.to_string()).collect()
    }

    /// The anchors of this document's headings.
    fn anchors(&self) -> BTreeSet<String> {
        let headings = self.text.lines().filter(|line| line.starts_with('#'));
        headings.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
    }
}

fn anchor(heading: &str) -> String {
    let kept = heading
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .collect::<String>();
    kept.replace(' ', "-")
}

fn collect(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(folder).expect("folder").map(|entry| entry.expect("entry").path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let foreign = ["target", "dist", "corpus", "artifacts"].contains(&name.as_str())
            || (name.starts_with('.') && name != ".cargo");
        match path.is_dir() {
            true if !foreign => collect(&path, ending, found),
            false if name.ends_with(ending) => found.push(path),
            _ => {}
        }
    }
}

fn files(ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect(&project("."), ending, &mut found);
    found.sort();
    found
}

fn documents() -> Vec<Document> {
    let all: Vec<_> = files(".md").into_iter().map(Document::read).collect();
    assert!(all.len() > 20, "documents are missing");
    all
}

#[test]
fn every_plugin_has_a_page_and_every_page_a_plugin() {
    let folder = std::fs::read_dir(project("docs/plugins")).unwrap();
    let mut pages: Vec<_> =
        folder.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    pages.retain(|page| page != "README.md");
    pages.sort();
    let mut wanted: Vec<_> = types().iter().map(|kind| format!("{kind}.md")).collect();
    wanted.sort();
    assert_eq!(pages, wanted);
}

/// The configs of single plugins in a JSON block, as STATUS gets them; none if the block is something else.
fn configs(block: &Value) -> Vec<Value> {
    let complete = |config: &Value| {
        let mut config = config.clone();
        config["cniVersion"] = json!("1.1.0");
        config["name"] = block.get("name").cloned().unwrap_or(json!("net"));
        config
    };
    match (&block["plugins"], &block["type"]) {
        (Value::Array(plugins), _) => plugins.iter().map(complete).collect(),
        (_, Value::String(_)) => vec![complete(block)],
        _ => Vec::new(),
    }
}

#[test]
fn configs_in_the_documents_are_accepted() {
    let node = Node::new();
    let subnet = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
    node.write("/run/flannel/subnet.env", subnet);
    let _daemon = node.dhcp_daemon("");
    node.sh(&format!("{} ipam pool pods 10.244.0.0/16", podwire_tests::podwire()));
    let no_pod = Pod { name: String::new(), netns: String::new() };
    let mut accepted = BTreeSet::new();
    for document in documents() {
        for (_, line, text) in document.blocks().into_iter().filter(|(language, ..)| language == "json") {
            let place = format!("{} line {line}", document.name());
            let block: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{place}: {error}"));
            for config in configs(&block) {
                accepted.extend(config["type"].as_str().map(String::from));
                accepted.extend(config["ipam"]["type"].as_str().map(String::from));
                if !config["type"].as_str().is_some_and(can_serve) {
                    continue;
                }
                // The example needs an existing interface.
                if let Some(master) = config["master"].as_str() {
                    node.sh(&format!("ip link show {master} || {{ ip link add {master} type veth && ip link set {master} up; }}"));
                }
                let output = Invocation::new(&node, &ours(), "STATUS", &no_pod, &config).run();
                // The config may be valid on another node, with a device that this one does not have.
                let elsewhere =
                    config["type"] == "host-device" && output.status == 1 && output.error().0 == 50;
                assert!(output.status == 0 || elsewhere, "{place}: {}{}", output.stdout, output.stderr);
            }
        }
    }
    assert_eq!(accepted.into_iter().collect::<Vec<_>>(), types(), "types that an example shows");
}

/// The network lists in the documents have no key that `podwire cni lint` does not know.
#[test]
fn networks_in_the_documents_have_no_misspelt_keys() {
    let folder = std::env::temp_dir().join(format!("podwire-docs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let runtime = podwire_cni_runtime::Runtime::new([&folder]).registry(podwire_plugins::registry());
    let (mut checked, mut wrong) = (0, Vec::new());
    for document in documents() {
        for (_, line, text) in document.blocks().into_iter().filter(|(language, ..)| language == "json") {
            let block: Value = serde_json::from_str(&text).unwrap_or_default();
            if block["plugins"].is_null() || block["name"].is_null() {
                continue;
            }
            let file = folder.join("example.conflist");
            std::fs::write(&file, &text).expect("a file");
            let place = format!("{} line {line}", document.name());
            let network =
                podwire_cni_runtime::Network::read(&file).unwrap_or_else(|error| panic!("{place}: {error}"));
            wrong.extend(runtime.lint(&network, &[]).iter().map(|warning| format!("{place}: {warning}")));
            checked += 1;
        }
    }
    std::fs::remove_dir_all(&folder).expect("the folder");
    assert!(checked > 5, "{checked}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Rust code in the guides is compiled with the library's examples. README shows parts of the same code.
#[test]
fn rust_in_the_readme_is_of_examples_that_are_compiled() {
    let bare = |line: &str| line.trim_start_matches("//!").trim().to_owned();
    let guide = Document::read(project("docs/runtime.md")).blocks().into_iter();
    let guide = guide.filter(|block| block.0.starts_with("rust")).map(|block| block.2);
    let library = Document::read(project("crates/cni-plugin/src/lib.rs")).text;
    let library = library.lines().filter(|line| line.starts_with("//!")).map(bare);
    let compiled: BTreeSet<String> =
        guide.flat_map(|block| block.lines().map(bare).collect::<Vec<_>>()).chain(library).collect();
    let shown: Vec<_> =
        Document::read(project("README.md")).blocks().into_iter().filter(|block| block.0 == "rust").collect();
    assert!(!shown.is_empty());
    for (_, number, block) in shown {
        for line in block.lines().map(bare).filter(|line| !line.is_empty()) {
            assert!(
                compiled.contains(&line),
                "README.md:{number}: {line:?} is in no example that is compiled"
            );
        }
    }
}

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    for document in documents() {
        for link in
            document.links().iter().filter(|link| !link.contains("://") && !link.starts_with("mailto:"))
        {
            let (file, heading) = link.split_once('#').unwrap_or((link.as_str(), ""));
            let target = match file {
                "" => document.path.clone(),
                file => document.path.with_file_name("").join(file),
            };
            let lost = !target.exists()
                || (!heading.is_empty()
                    && target.is_file()
                    && !Document::read(target).anchors().contains(heading));
            if lost {
                broken.push(format!("{}: {link}", document.name()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Sources refer readers to the decision that explains them.
#[test]
fn documents_that_sources_refer_to_are_there() {
    let mut referring = files(".rs");
    referring.extend(files(".toml"));
    referring.push(project("Makefile"));
    let mut missing = Vec::new();
    for source in referring {
        let text = std::fs::read_to_string(&source).expect("source");
        for rest in text.split("docs/").skip(1) {
            let path: String =
                rest.chars().take_while(|c| c.is_ascii_alphanumeric() || "/-_.".contains(*c)).collect();
            if let Some(name) = path.split_inclusive(".md").next().filter(|name| name.ends_with(".md")) {
                if !project(".").join("docs").join(name).exists() {
                    missing.push(format!("{}: docs/{name}", source.display()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// The commands in the documents: in shell blocks and inline.
fn shown(document: &Document) -> Vec<String> {
    let blocks = document.blocks();
    let shell = blocks.iter().filter(|(language, ..)| language == "sh").flat_map(|(.., text)| text.lines());
    shell.map(String::from).chain(document.quoted()).collect()
}

/// Those of `podwire` are checked with its command line, in `crates/cli/src/named_commands.rs`.
#[test]
fn make_verbs_in_the_documents_exist() {
    let makefile = std::fs::read_to_string(project("Makefile")).unwrap();
    let lanes = "lint unit kernel suites runtimes kubernetes demo bench";
    let is_lane = |verb: &str| {
        verb.strip_prefix("test-")
            .is_some_and(|lane| lane == "LANE" || lanes.split(' ').any(|one| one == lane))
    };
    let is_target = |verb: &str| makefile.lines().any(|line| line.starts_with(&format!("{verb}:")));
    let mut unknown = Vec::new();
    let mut seen = BTreeSet::new();
    for document in documents() {
        for line in shown(&document) {
            let mut words = line.split_whitespace().skip_while(|word| *word == "sudo" || word.contains('='));
            let (Some("make"), Some(verb)) = (words.next(), words.next()) else { continue };
            if !verb.starts_with(|c: char| c.is_ascii_lowercase()) {
                continue;
            }
            seen.insert(verb.to_owned());
            if !is_target(verb) && !is_lane(verb) {
                unknown.push(format!("{}: make {verb}", document.name()));
            }
        }
    }
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
    assert!(seen.contains("demo"), "{seen:?}");
}

/// The rows of the benchmark's table: scenario, verb, limit.
fn targets() -> Vec<[String; 3]> {
    let source = std::fs::read_to_string(project("bench/src/target.rs")).expect("the targets");
    let rows = source.lines().map(str::trim).skip_while(|line| !line.starts_with("pub const TARGETS"));
    let rows = rows.skip(1).take_while(|line| *line != "];");
    let read = |line: &str| {
        let mut names = line.split('"').skip(1).step_by(2).map(String::from);
        let limit = line.trim_end_matches("),").rsplit(' ').next().unwrap_or_default().to_string();
        [names.next().unwrap_or_default(), names.next().unwrap_or_default(), limit]
    };
    rows.map(read).collect()
}

#[test]
fn promises_of_speed_are_those_that_the_benchmark_enforces() {
    let specification = std::fs::read_to_string(project("SPECIFICATION.md")).unwrap();
    let rows: Vec<&str> = specification.lines().filter(|line| line.starts_with("| `")).collect();
    let promised = |[scenario, verb, limit]: &[String; 3]| {
        let limits = [format!("≤ {limit} ×"), format!("≥ {limit} ×")];
        let begins = [format!("| `{scenario}` | {verb} "), format!("| `{scenario}` | {verb}, ")];
        rows.iter().any(|row| {
            begins.iter().any(|begin| row.starts_with(begin)) && limits.iter().any(|text| row.contains(text))
        })
    };
    let all = targets();
    assert!(all.len() >= 20, "{all:?}");
    for target in &all {
        assert!(promised(target), "SPECIFICATION.md does not promise {target:?}");
    }
    let speed = rows.iter().filter(|row| row.contains("≤ ") || row.contains("≥ ")).count();
    assert_eq!(speed, all.len(), "SPECIFICATION.md promises what the benchmark does not enforce");
}

/// The sources of a plugin type: its file and its folder.
fn sources(kind: &str) -> String {
    let module = match kind {
        "static" => "static_ipam".to_owned(),
        _ => kind.replace('-', "_"),
    };
    let root = project("crates/plugins/src");
    let mut files = vec![root.join(format!("{module}.rs"))];
    let folder = std::fs::read_dir(root.join(&module)).into_iter().flatten().flatten();
    files.extend(
        folder.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "rs")),
    );
    files.iter().map(|file| std::fs::read_to_string(file).unwrap_or_default()).collect()
}

/// The keys of the config structs in a source: fields of what serde reads, by the names that serde gives them.
fn keys(source: &str) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let mut lines = source.lines().map(str::trim);
    while let Some(line) = lines.next() {
        let is_config =
            line.starts_with("#[derive(") && line.contains("Deserialize") && !line.contains(" Serialize");
        if !is_config {
            continue;
        }
        let head: Vec<&str> = lines.by_ref().take_while(|line| !line.ends_with('{')).collect();
        if head.iter().any(|line| line.contains("PascalCase")) {
            continue;
        }
        let is_camel = head.iter().any(|line| line.contains("camelCase"));
        let (mut renamed, mut is_read) = (None, true);
        for line in lines.by_ref().take_while(|line| *line != "}") {
            if let Some(name) = line.split_once("rename = \"").and_then(|(_, rest)| rest.split('"').next()) {
                renamed = Some(name.to_owned());
            }
            is_read &= !line.starts_with("#[serde(skip");
            let field = line.trim_start_matches("pub(super) ").trim_start_matches("pub ");
            let is_field = !line.starts_with("//") && !line.starts_with('#');
            if let (Some((name, _)), true) = (field.split_once(": "), is_field) {
                let key = renamed.take().unwrap_or_else(|| {
                    if is_camel {
                        camel(name)
                    } else {
                        name.trim_start_matches("r#").into()
                    }
                });
                keys.extend(std::mem::replace(&mut is_read, true).then_some(key));
            }
        }
    }
    keys
}

fn camel(field: &str) -> String {
    let mut parts = field.trim_start_matches("r#").split('_');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |name, part| name + &part[..1].to_uppercase() + &part[1..])
}

/// Whether a source has the key, as a string or as a field. Shared code reads the keys of all plugins.
fn is_read(key: &str, source: &str) -> bool {
    const SHARED: &[&str] = &["ipam", "dns", "mac", "ips", "master", "mtu", "linkInContainer"];
    let field = key.chars().fold(String::new(), |field, c| {
        if c.is_uppercase() {
            format!("{field}_{}", c.to_ascii_lowercase())
        } else {
            format!("{field}{c}")
        }
    });
    source.contains(key) || source.contains(&field) || SHARED.contains(&key)
}

#[test]
fn every_key_that_a_plugin_reads_is_on_its_page_and_no_other() {
    let mut wrong = Vec::new();
    for kind in types() {
        let (page, source) =
            (Document::read(project(&format!("docs/plugins/{kind}.md"))).text, sources(&kind));
        let missing = keys(&source).into_iter().filter(|key| !page.contains(key.as_str()));
        wrong.extend(missing.map(|key| format!("{kind}: {key} is not on the page")));
        let table = page.lines().skip_while(|line| !line.starts_with("## Keys")).skip(1);
        for line in table.take_while(|line| !line.starts_with("## ")) {
            let Some(cell) = line.strip_prefix("| `").and_then(|rest| rest.split('`').next()) else {
                continue;
            };
            let last = cell.rsplit(['.', ' ', '[']).next().unwrap_or(cell);
            for key in last.trim_matches(|c| "[]{}\"".contains(c)).split(',') {
                if !is_read(key, &source) {
                    wrong.push(format!("{kind}: {key} is on the page, and not in the source"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The paths in the tables of keys of a plugin's page, in the form of `podwire_cni_plugin::Keys`.
fn documented_keys(kind: &str) -> BTreeSet<String> {
    // Other tables are about other files.
    const SECTIONS: &[&str] = &["## Keys", "## Calico's other keys", "## The datastore"];
    let page = Document::read(project(&format!("docs/plugins/{kind}.md"))).text;
    let mut paths = BTreeSet::new();
    let (mut in_section, mut in_table) = (false, false);
    for line in page.lines() {
        in_section = if line.starts_with("## ") { SECTIONS.contains(&line) } else { in_section };
        in_table = in_section && (line.starts_with("| key |") || (in_table && line.starts_with('|')));
        let cell = line.split('|').nth(1).filter(|cell| in_table && !cell.contains("CNI_ARGS"));
        for path in cell.unwrap_or_default().split('`').skip(1).step_by(2) {
            let (before, names) = path.split_once('{').unwrap_or(("", path));
            for name in names.trim_end_matches('}').split(',') {
                let path = format!("{before}{}", name.trim_end_matches("[]").replace('…', "*"));
                let is_ipam =
                    kind == "host-local" && !path.starts_with("runtimeConfig") && !path.starts_with("args");
                paths.insert(if is_ipam { format!("ipam.{path}") } else { path });
            }
        }
    }
    paths
}

/// A path and those above it: `a[].b`, `a[]`, `a`.
fn and_above(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| path.rfind(['.', '[']).map(|end| &path[..end]))
}

#[test]
fn the_keys_that_lint_knows_are_those_of_the_pages_and_of_the_sources() {
    // In every config; `ipam` is for the IPAM plugin of any config.
    const COMMON: &[&str] = &["runtimeConfig", "capabilities", "ipam"];
    let mut wrong = Vec::new();
    for plugin in podwire_plugins::PLUGINS {
        let (kind, documented) = (plugin.name(), documented_keys(plugin.name()));
        let known: BTreeSet<&str> = plugin.keys().expect("keys of every plugin").iter().collect();
        for path in &documented {
            let is_known = known.iter().any(|key| and_above(key).any(|above| above == path));
            let is_open = COMMON.contains(&path.as_str()) || path.starts_with("args.");
            wrong.extend((!is_known && !is_open).then(|| format!("{kind}: lint does not know {path}")));
        }
        let hidden = known.iter().filter(|key| !and_above(key).any(|above| documented.contains(above)));
        wrong.extend(hidden.map(|key| format!("{kind}: {key} is not in a table of the page")));
        let segments: BTreeSet<&str> = known.iter().flat_map(|key| key.split(['.', '[', ']'])).collect();
        let read = keys(&sources(kind)).into_iter().filter(|key| !segments.contains(key.as_str()));
        wrong.extend(read.map(|key| format!("{kind}: the source reads {key}, and lint does not know it")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

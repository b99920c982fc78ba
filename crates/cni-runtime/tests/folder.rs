//! The directory of network configs.

#![allow(clippy::unwrap_used)]

mod bench;

use std::fs;

use bench::Bench;
use podwire_cni_runtime::{ConfigFolder, Error};
use serde_json::json;

struct Folder(Bench);

impl Folder {
    fn new(files: &[(&str, &str)]) -> Folder {
        let bench = Bench::new(&[]);
        for (name, text) in files {
            let path = bench.root.join("net.d").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Folder(bench)
    }

    fn open(&self) -> ConfigFolder {
        ConfigFolder::new(self.0.root.join("net.d"))
    }
}

fn network(name: &str, kind: &str) -> String {
    json!({"cniVersion": "1.0.0", "name": name, "plugins": [{"type": kind}]}).to_string()
}

fn single(name: &str, kind: &str) -> String {
    json!({"cniVersion": "1.0.0", "name": name, "type": kind}).to_string()
}

#[test]
fn an_invalid_file_is_reported_and_hides_no_network() {
    let folder = Folder::new(&[
        ("10-torn.conflist", r#"{"cniVersion": "1.0.0", "na"#),
        ("15-empty.conflist", r#"{"cniVersion": "1.0.0", "name": "none", "plugins": []}"#),
        ("20-good.conflist", &network("good", "a")),
        ("30-note.txt", "not a network"),
    ]);
    fs::create_dir(folder.open().path().join("40-folder.conflist")).unwrap();
    let loaded = folder.open().load();
    assert_eq!(loaded.networks.iter().map(|n| n.list.name.as_str()).collect::<Vec<_>>(), ["good"]);
    assert_eq!(loaded.problems.len(), 2);
    assert!(loaded.problems[1].error.to_string().contains("no plugin configs found"));
    assert_eq!(folder.open().find("good").unwrap().list.plugins[0].kind, "a");

    let error = folder.open().find("x").unwrap_err();
    let text = format!("no net configuration with name \"x\" in {}", folder.open().path().display());
    assert_eq!(error.to_string(), text);
    let details = error.to_cni().details;
    assert!(details.starts_with("there are: good; skipped "), "{details}");
    assert!(
        details.contains("10-torn.conflist: error parsing configuration list: invalid JSON"),
        "{details}"
    );
}

#[test]
fn lists_come_before_single_plugins_and_names_in_order() {
    let folder = Folder::new(&[
        ("10-a.conf", &single("net", "from-conf")),
        ("20-b.conflist", &network("net", "from-list")),
        ("30-c.conflist", &network("net", "too-late")),
        ("05-d.json", &single("first", "from-json")),
    ]);
    let find = |name| folder.open().find(name).unwrap().list.plugins[0].kind.clone();
    assert_eq!((find("net").as_str(), find("first").as_str()), ("from-list", "from-json"));
    assert_eq!(folder.open().default_network().unwrap().list.name.as_str(), "first");
}

#[test]
fn plugins_of_the_subdirectory_are_added_and_recorded() {
    let folder = Folder::new(&[
        ("10-net.conflist", &network("net", "a")),
        ("net/20-c.conf", r#"{"type": "c"}"#),
        ("net/10-b.conf", r#"{"type": "b", "x": 1}"#),
        ("net/30-d.txt", r#"{"type": "d"}"#),
    ]);
    let list = folder.open().find("net").unwrap().list;
    let kinds = |list: &podwire_cni_spec::NetworkList| {
        list.plugins.iter().map(|p| p.kind.clone()).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&list), ["a", "b", "c"]);
    assert_eq!(kinds(&podwire_cni_spec::NetworkList::parse(&list.bytes).unwrap()), ["a", "b", "c"]);

    let alone = json!({"cniVersion": "1.0.0", "name": "net", "loadOnlyInlinedPlugins": true, "plugins": [{"type": "a"}]});
    fs::write(folder.open().path().join("10-net.conflist"), alone.to_string()).unwrap();
    assert_eq!(kinds(&folder.open().find("net").unwrap().list), ["a"]);
}

#[test]
fn a_missing_directory_is_empty() {
    let folder = ConfigFolder::new("/nonexistent/net.d");
    assert!(folder.load().networks.is_empty() && folder.load().problems.is_empty());
    let error = folder.default_network().unwrap_err();
    assert_eq!(error.to_string(), "no net configurations found in /nonexistent/net.d");
    assert!(matches!(error, Error::NotFound { .. }));
}

//! The usable networks of a directory, and waiting for changes.

#![allow(clippy::unwrap_used)]

mod bench;

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsFd;
use std::time::Duration;

use bench::Bench;
use podwire_cni_runtime::{Catalogue, ConfigFolder, Readiness, Watch};
use podwire_netlink::sys;
use serde_json::json;

const VERSIONS: &str = r#"{"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}"#;

fn network(name: &str, version: &str, kind: &str) -> String {
    json!({"cniVersion": version, "name": name, "plugins": [{"type": kind}]}).to_string()
}

fn bench(kinds: &[&str]) -> Bench {
    let bench = Bench::new(kinds);
    for kind in kinds {
        bench.says(kind, "VERSION", VERSIONS);
    }
    bench
}

fn write(bench: &Bench, file: &str, text: &str) {
    fs::write(bench.root.join("net.d").join(file), text).unwrap();
}

fn catalogue(bench: &Bench) -> Catalogue<'static> {
    Catalogue::read(ConfigFolder::new(bench.root.join("net.d")), bench.runtime())
}

fn default(catalogue: &Catalogue<'_>) -> String {
    catalogue.default_network().map(|network| network.list.name.to_string()).unwrap_or_default()
}

#[test]
fn the_default_network_is_the_first_usable_file() {
    let bench = bench(&["a", "old"]);
    bench.says("old", "VERSION", r#"{"cniVersion": "0.4.0", "supportedVersions": ["0.4.0"]}"#);
    write(&bench, "10-torn.conflist", "{");
    write(&bench, "20-empty.conflist", r#"{"cniVersion": "1.0.0", "name": "empty", "plugins": []}"#);
    write(&bench, "30-typeless.conf", r#"{"cniVersion": "1.0.0", "name": "typeless"}"#);
    write(&bench, "40-absent.conflist", &network("absent", "1.0.0", "nowhere"));
    write(&bench, "50-old.conflist", &network("old", "1.0.0", "old"));
    write(&bench, "60-good.conflist", &network("good", "1.0.0", "a"));
    write(&bench, "70-other.conflist", &network("other", "1.0.0", "a"));
    let catalogue = catalogue(&bench);
    assert_eq!(default(&catalogue), "good");
    let skipped: Vec<_> = catalogue.skipped().iter().map(ToString::to_string).collect();
    let reasons = [
        "invalid JSON",
        "no plugin configs found",
        "missing 'type'",
        "failed to find plugin \"nowhere\"",
        "does not support config version \"1.0.0\"",
    ];
    assert_eq!(skipped.len(), reasons.len(), "{skipped:#?}");
    for (line, reason) in skipped.iter().zip(reasons) {
        assert!(line.contains(reason), "{line}");
    }
    assert_eq!(catalogue.find("other").unwrap().list.name.as_str(), "other");
    let missing = catalogue.find("absent").unwrap_err().to_cni();
    assert!(missing.details.contains("40-absent.conflist: plugin type=\"nowhere\""), "{missing:?}");
}

#[test]
fn versions_are_asked_once_while_the_plugin_file_is_unchanged() {
    let bench = bench(&["a"]);
    write(&bench, "10-a.conflist", &network("a", "1.0.0", "a"));
    let mut catalogue = catalogue(&bench);
    assert_eq!(bench.calls(), ["VERSION a"]);
    assert!(!catalogue.refresh() && bench.calls().is_empty());
    let script = fs::read(bench.plugin("a")).unwrap();
    fs::write(bench.plugin("a"), [&script[..], b"\n"].concat()).unwrap();
    assert!(!catalogue.refresh());
    assert_eq!(bench.calls(), ["VERSION a"]);
}

#[test]
fn readiness_is_the_status_of_the_default_network() {
    let bench = bench(&["a"]);
    write(&bench, "10-a.conflist", &network("a", "1.1.0", "a"));
    let catalogue = catalogue(&bench);
    assert!(catalogue.readiness().is_ready());
    bench.fails("a", "STATUS", 50, "no addresses are left");
    match catalogue.readiness() {
        Readiness::NotReady { network, reason } => {
            assert_eq!((network.unwrap().as_str(), reason.code), ("a", 50));
            assert!(reason.msg.ends_with("no addresses are left"), "{reason:?}");
        }
        ready => panic!("{ready:?}"),
    }
    bench.works_again("a", "STATUS");
    assert!(catalogue.readiness().is_ready());
    fs::remove_file(bench.root.join("net.d/10-a.conflist")).unwrap();
    let mut catalogue = catalogue;
    assert!(catalogue.refresh() && !catalogue.readiness().is_ready());
}

#[test]
fn a_plugin_can_be_in_a_vendor_directory() {
    let bench = bench(&["a"]);
    let vendor = bench.root.join("opt/acme/bin");
    fs::create_dir_all(&vendor).unwrap();
    write(&bench, "10-acme.conflist", &network("acme", "1.0.0", "acme"));
    let open = || {
        Catalogue::read(
            ConfigFolder::new(bench.root.join("net.d")),
            bench.runtime().vendors(bench.root.join("opt")),
        )
    };
    assert_eq!(default(&open()), "");
    // Its log is beside its directory.
    fs::create_dir_all(bench.root.join("opt/acme/log")).unwrap();
    fs::write(bench.root.join("opt/acme/log/acme.VERSION.out"), VERSIONS).unwrap();
    fs::copy(bench.plugin("a"), vendor.join("acme")).unwrap();
    let catalogue = open();
    assert_eq!(default(&catalogue), "acme");
    fs::write(bench.root.join("opt/acme/log/acme.ADD.out"), "{}").unwrap();
    catalogue.runtime().add(&catalogue.default_network().unwrap().list, &bench::pod()).unwrap();
    let env = fs::read_to_string(bench.root.join("opt/acme/log/acme.ADD.env")).unwrap();
    let path = format!("CNI_PATH={}:{}\n", bench.root.join("bin").display(), vendor.display());
    assert!(env.contains(&path), "{env}");
}

/// Discards the inotify events of earlier changes.
fn forget(watch: &Watch) {
    let mut notices = File::from(watch.as_fd().try_clone_to_owned().unwrap());
    while notices.read(&mut [0; 4096]).is_ok_and(|length| length > 0) {}
}

/// Makes a change and waits until the default network is `expected`. There must be an inotify event: the read every five
/// seconds would find the change too.
fn follow(watch: &mut Watch, catalogue: &mut Catalogue<'_>, expected: &str, change: impl FnOnce()) {
    forget(watch);
    change();
    while default(catalogue) != expected {
        let ready = sys::readable(&[watch.as_fd()], Duration::from_secs(20)).unwrap();
        assert!(ready[0], "no inotify event before {expected:?}");
        watch.next(catalogue, Duration::ZERO).unwrap();
    }
}

#[test]
fn the_default_network_follows_created_changed_and_removed_files() {
    let bench = bench(&["a"]);
    let folder = bench.root.join("net.d");
    let mut all = catalogue(&bench);
    let watch = &mut Watch::new(&mut all).unwrap();
    let all = &mut all;
    let one = network("one", "1.0.0", "a");
    follow(watch, all, "one", || write(&bench, "20-one.conflist", &one));
    follow(watch, all, "first", || write(&bench, "10-first.conflist", &network("first", "1.0.0", "a")));
    follow(watch, all, "changed", || write(&bench, "10-first.conflist", &network("changed", "1.0.0", "a")));
    follow(watch, all, "one", || write(&bench, "10-first.conflist", "{ torn"));
    assert_eq!(all.skipped().len(), 1);
    // Events that containerd misses: renamed from another directory, and linked.
    let elsewhere = bench.root.join("elsewhere");
    fs::write(&elsewhere, network("moved", "1.0.0", "a")).unwrap();
    follow(watch, all, "moved", || fs::rename(&elsewhere, folder.join("05-moved.conflist")).unwrap());
    follow(watch, all, "one", || fs::rename(folder.join("05-moved.conflist"), &elsewhere).unwrap());
    follow(watch, all, "moved", || fs::hard_link(&elsewhere, folder.join("05-moved.conflist")).unwrap());
    follow(watch, all, "one", || fs::remove_file(folder.join("05-moved.conflist")).unwrap());
    // The directory itself is removed, created again, and replaced.
    follow(watch, all, "", || fs::remove_dir_all(&folder).unwrap());
    follow(watch, all, "one", || {
        fs::create_dir(&folder).unwrap();
        write(&bench, "20-one.conflist", &one);
    });
    follow(watch, all, "", || fs::rename(&folder, bench.root.join("away")).unwrap());
    follow(watch, all, "one", || fs::rename(bench.root.join("away"), &folder).unwrap());
    // The same for plugins.
    let (plugin, away) = (bench.plugin("a"), bench.root.join("a"));
    follow(watch, all, "", || fs::rename(&plugin, &away).unwrap());
    follow(watch, all, "one", || fs::rename(&away, &plugin).unwrap());
}

#[test]
fn a_watch_waits_for_a_vendor_directory() {
    let bench = bench(&["a"]);
    let vendor = bench.root.join("opt/acme");
    write(&bench, "10-acme.conflist", &network("acme", "1.0.0", "acme"));
    let runtime = bench.runtime().vendors(bench.root.join("opt"));
    let mut all = Catalogue::read(ConfigFolder::new(bench.root.join("net.d")), runtime);
    let mut watch = Watch::new(&mut all).unwrap();
    follow(&mut watch, &mut all, "acme", || {
        // Its log is beside its directory.
        fs::create_dir_all(vendor.join("log")).unwrap();
        fs::write(vendor.join("log/acme.VERSION.out"), VERSIONS).unwrap();
        fs::create_dir_all(vendor.join("bin")).unwrap();
        fs::hard_link(bench.plugin("a"), vendor.join("bin/acme")).unwrap();
    });
}

#[test]
fn a_watch_waits_for_a_missing_directory() {
    let bench = bench(&["a"]);
    let deep = bench.root.join("etc/cni/net.d");
    let mut all = Catalogue::read(ConfigFolder::new(&deep), bench.runtime());
    let mut watch = Watch::new(&mut all).unwrap();
    follow(&mut watch, &mut all, "deep", || {
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("10-deep.conflist"), network("deep", "1.0.0", "a")).unwrap();
    });
}

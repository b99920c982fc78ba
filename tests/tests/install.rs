//! `podwire install` with root directories: what it installs, keeps and restores, and what is left when it is killed at
//! any of its system calls.

use std::collections::BTreeMap;
use std::os::unix::fs::{symlink, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use podwire_tests::strace::{killed_at, operations, Traced};
use podwire_tests::{podwire, types, Node, Output};
use serde_json::Value;

/// A machine's root directory, as in an image.
struct Image<'n> {
    node: &'n Node,
    path: PathBuf,
}

/// All files with their content, all links with their targets, and all directories.
type Tree = BTreeMap<String, Vec<u8>>;

impl<'n> Image<'n> {
    fn new(node: &'n Node) -> Image<'n> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("podwire-image-{}-{number}", std::process::id()));
        std::fs::create_dir_all(path.join("var/lib")).unwrap();
        Image { node, path }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.path.join(path.trim_start_matches('/'))
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn has(&self, path: &str) -> bool {
        self.path(path).symlink_metadata().is_ok()
    }

    fn run(&self, words: &[&str]) -> Output {
        Call { image: self, words: words.to_vec() }.behind(&[])
    }

    /// Its output as JSON; panics if it fails.
    fn install(&self, words: &[&str]) -> Value {
        self.run(&[words, &["--json"]].concat()).result()
    }

    fn tree(&self) -> Tree {
        fn walk(root: &Path, folder: &Path, tree: &mut Tree) {
            for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                let name = path.strip_prefix(root).unwrap().display().to_string();
                let metadata = path.symlink_metadata().unwrap();
                let what = match () {
                    () if metadata.is_symlink() => {
                        std::fs::read_link(&path).unwrap().display().to_string().into_bytes()
                    }
                    () if metadata.is_dir() => b"folder".to_vec(),
                    () => [format!("{:o} ", metadata.mode()).into_bytes(), std::fs::read(&path).unwrap()]
                        .concat(),
                };
                tree.insert(name, what);
                if metadata.is_dir() {
                    walk(root, &path, tree);
                }
            }
        }
        let mut tree = Tree::new();
        walk(&self.path, &self.path, &mut tree);
        tree
    }

    fn assert_tree(&self, wanted: &Tree, when: &str) {
        let now = self.tree();
        let differs: Vec<_> =
            now.keys().chain(wanted.keys()).filter(|name| now.get(*name) != wanted.get(*name)).collect();
        assert!(differs.is_empty(), "{when}: {differs:?}");
    }
}

impl Drop for Image<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// `podwire install` for an image.
struct Call<'a> {
    image: &'a Image<'a>,
    words: Vec<&'a str>,
}

impl Traced for Call<'_> {
    fn behind(&self, wrapper: &[&str]) -> Output {
        let (program, root) = (podwire(), self.image.path.display().to_string());
        let mut words = wrapper.to_vec();
        words.extend([program.as_str(), "install", "--root", &root]);
        words.extend(&self.words);
        self.image.node.output(&words, &[])
    }
}

const CONTAINERD: &str = "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = '/usr/lib/cni'\n";
const LIST: &str = "/etc/cni/net.d/10-podwire.conflist";

fn done(answer: &Value, verb: &str) -> Vec<String> {
    let steps = answer["steps"].as_array().unwrap().iter().filter(|step| step["do"] == verb);
    steps.map(|step| step["path"].as_str().unwrap().to_owned()).collect()
}

fn warnings(answer: &Value) -> String {
    answer["warnings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|text| text.as_str().unwrap())
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn a_fresh_node_gets_every_plugin_and_a_network_and_gives_all_of_it_back() {
    let node = Node::new();
    let image = Image::new(&node);
    image.write("/etc/containerd/config.toml", CONTAINERD);
    let before = image.tree();
    let answer = image.install(&[]);
    assert_eq!(answer["runtimes"][0]["runtime"], "containerd");
    let inodes: Vec<_> = types()
        .iter()
        .map(|kind| image.path(&format!("/usr/lib/cni/{kind}")).metadata().unwrap())
        .map(|metadata| (metadata.ino(), metadata.mode() & 0o7777))
        .collect();
    assert!(
        inodes.iter().all(|one| *one == inodes[0] && one.1 == 0o755),
        "one program under many names: {inodes:?}"
    );
    let list: Value = serde_json::from_str(&image.read(LIST)).unwrap();
    assert_eq!((&list["cniVersion"], &list["name"]), (&"1.0.0".into(), &"podwire".into()));
    assert_eq!(list["plugins"][0]["type"], "bridge");
    // A second run changes nothing and keeps the record of the first one.
    assert!(image.install(&[])["steps"].as_array().unwrap().is_empty());
    image.install(&["--uninstall"]);
    image.assert_tree(&before, "after uninstall");
    assert!(image.run(&["--uninstall"]).stdout.contains("nothing is installed"));
    image.assert_tree(&before, "after a second uninstall");
}

#[test]
fn a_dry_run_shows_the_changes_and_makes_none() {
    let node = Node::new();
    let image = Image::new(&node);
    image.write("/etc/containerd/config.toml", CONTAINERD);
    image.write("/usr/lib/cni/bridge", "go");
    let before = image.tree();
    let shown = image.install(&["--dry-run", "--replace"]);
    image.assert_tree(&before, "after a dry run");
    assert_eq!(shown["steps"], image.install(&["--replace"])["steps"]);
    let installed = image.tree();
    let shown = image.install(&["--uninstall", "--dry-run"]);
    image.assert_tree(&installed, "after a dry run of uninstall");
    assert_eq!(shown["steps"], image.install(&["--uninstall"])["steps"]);
    image.assert_tree(&before, "at the end");
    let text = image.run(&["--dry-run"]).stdout;
    assert!(text.contains("/usr/lib/cni: would install: bandwidth calico"), "{text}");
    assert!(text.contains("/usr/lib/cni: not Podwire's, kept (--replace"), "{text}");
}

#[test]
fn other_plugins_are_replaced_only_on_request_and_restored() {
    let node = Node::new();
    let image = Image::new(&node);
    image.write("/etc/containerd/config.toml", CONTAINERD);
    image.write("/usr/lib/cni/bridge", "go");
    // k3s has links to one program.
    symlink("cni", image.path("/usr/lib/cni/portmap")).unwrap();
    let before = image.tree();
    let answer = image.install(&["--no-conflist"]);
    assert_eq!(answer["leftAlone"]["foreign"].as_array().unwrap().len(), 2, "{answer}");
    assert_eq!(image.read("/usr/lib/cni/bridge"), "go");
    let answer = image.install(&["--no-conflist", "--replace"]);
    assert_eq!(done(&answer, "replace"), ["/usr/lib/cni/bridge", "/usr/lib/cni/portmap"]);
    assert!(image.path("/usr/lib/cni/portmap").symlink_metadata().unwrap().is_file());
    // An update does not treat Podwire's plugins as others'.
    image.install(&["--no-conflist", "--replace"]);
    image.install(&["--uninstall"]);
    image.assert_tree(&before, "after uninstall");
}

#[test]
fn changed_files_are_kept_and_reported() {
    let node = Node::new();
    let image = Image::new(&node);
    image.write("/usr/bin/containerd", "");
    image.write("/opt/cni/bin/bridge", "go");
    image.install(&["--replace"]);
    std::fs::remove_file(image.path("/opt/cni/bin/bridge")).unwrap();
    image.write("/opt/cni/bin/bridge", "newer go");
    image.write(LIST, "{}");
    let again = image.install(&["--network", "ptp"]);
    assert_eq!(again["leftAlone"]["changed"].as_array().unwrap().len(), 2, "{again}");
    let output = image.run(&["--uninstall"]);
    assert!(output.stdout.contains("changed since its installation, kept: bridge"), "{}", output.stdout);
    assert_eq!((image.read("/opt/cni/bin/bridge"), image.read(LIST)), ("newer go".into(), "{}".into()));
    assert_eq!(image.read("/opt/cni/bin/bridge.before-podwire"), "go");
    assert!(!image.has("/opt/cni/bin/ptp") && !image.has("/var/lib/podwire"));
}

#[test]
fn a_competing_network_is_reported() {
    let node = Node::new();
    let image = Image::new(&node);
    image.write("/etc/containerd/config.toml", CONTAINERD);
    let other = r#"{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "ptp"}]}"#;
    image.write("/etc/cni/net.d/05-other.conflist", other);
    let reported = image.install(&["--dry-run"]);
    assert!(
        warnings(&reported).contains("already has a network (05-other.conflist): installed none"),
        "{reported}"
    );
    assert!(!done(&reported, "put").contains(&LIST.to_owned()));
    let reported = image.install(&["--dry-run", "--network", "bridge"]);
    assert!(
        warnings(&reported).contains("10-podwire.conflist is not used: 05-other.conflist (network other)"),
        "{reported}"
    );
    let reported = image.install(&["--dry-run", "--network", "bridge", "--conf-name", "00-podwire.conflist"]);
    assert!(warnings(&reported).contains("instead of 05-other.conflist"), "{reported}");
}

#[test]
fn a_network_without_its_dhcp_daemon_is_reported() {
    let node = Node::new();
    let image = Image::new(&node);
    image.write("/etc/containerd/config.toml", CONTAINERD);
    let lan = r#"{"cniVersion": "1.0.0", "name": "lan", "plugins": [{"type": "bridge", "ipam": {"type": "dhcp"}}]}"#;
    image.write("/etc/cni/net.d/05-lan.conflist", lan);
    let reported = image.install(&["--dry-run"]);
    let missing = "lan: the network uses the dhcp plugin, and no unit of the DHCP daemon is installed";
    assert!(warnings(&reported).contains(missing), "{reported}");
    image.write("/etc/systemd/system/multi-user.target.wants/d.service", "");
    image.write("/etc/systemd/system/d.service", "[Service]\nExecStart=/opt/cni/bin/dhcp daemon\n");
    let reported = image.install(&["--dry-run"]);
    assert!(!warnings(&reported).contains("dhcp"), "{reported}");
    // On the running node the daemon has to listen.
    node.write("/run/test/net.d/05-lan.conflist", lan);
    let command = [
        &podwire(),
        "install",
        "--dry-run",
        "--json",
        "--bin-dir",
        "/run/test/bin",
        "--conf-dir",
        "/run/test/net.d",
    ];
    let missing = "lan: the network uses the dhcp plugin, and no DHCP daemon listens at /run/cni/dhcp.sock";
    let reported = node.output(&command, &[]).result();
    assert!(warnings(&reported).contains(missing), "{reported}");
    let _daemon = node.dhcp_daemon("");
    let reported = node.output(&command, &[]).result();
    assert!(!warnings(&reported).contains("dhcp"), "{reported}");
}

#[test]
fn the_choice_of_a_network_is_honoured() {
    let node = Node::new();
    let image = Image::new(&node);
    image.write("/etc/containers/containers.conf", "[network]\nnetwork_backend = 'cni'\n");
    image.write("/usr/bin/podman", "");
    let words = ["--network", "ptp", "--subnet", "10.9.0.0/24", "--subnet", "fd09::/64", "--name", "pods"];
    let answer = image.install(&words);
    assert_eq!(answer["runtimes"][0]["runtime"], "podman");
    assert!(image.has("/usr/local/libexec/cni/ptp"), "the first folder that podman looks into");
    let list: Value = serde_json::from_str(&image.read(LIST)).unwrap();
    assert_eq!((&list["cniVersion"], &list["name"]), (&"0.4.0".into(), &"pods".into()));
    assert_eq!(list["plugins"][0]["ipam"]["ranges"][1][0]["subnet"], "fd09::/64");
    let own = r#"{"cniVersion": "1.0.0", "name": "mine", "plugins": [{"type": "noop"}]}"#;
    image.write("/mine.conflist", own);
    let file = image.path("/mine.conflist").display().to_string();
    image.install(&["--conflist", &file, "--conf-dir", "/srv/net.d", "--bin-dir", "/srv/bin"]);
    assert_eq!(image.read("/srv/net.d/mine.conflist"), own);
    for wrong in [
        &["--network", "macvlan"][..],
        &["--subnet", "10.9.0.7/24"],
        &["--conf-name", "x.conf"],
        &["--bin-dir", "bin"],
        &["--cni-version", "9.9.9"],
        &["--from", "/nowhere"],
    ] {
        let output = image.run(&[wrong, &["--conf-dir", "/empty"]].concat());
        assert_eq!(output.status, 1, "{wrong:?}: {}", output.stdout);
        assert!(output.stderr.contains("because: "), "{wrong:?}: {}", output.stderr);
        assert!(!image.has("/empty"), "{wrong:?}");
    }
    image.install(&["--uninstall"]);
    assert!(
        !image.has("/srv") && !image.has("/usr/local") && !image.has("/etc/cni"),
        "{:?}",
        image.tree().keys()
    );
}

#[test]
fn links_in_an_image_do_not_lead_out_of_it() {
    let node = Node::new();
    let image = Image::new(&node);
    image.write("/opt/cni/x", "");
    symlink("/plugins/of/the/image", image.path("/opt/cni/bin")).unwrap();
    std::fs::create_dir_all(image.path("/plugins/of/the/image")).unwrap();
    image.install(&["--no-conflist"]);
    assert!(image.has("/plugins/of/the/image/bridge") && !Path::new("/plugins").exists());
}

/// A running plugin keeps its program file, and a runtime that watches only renames notices the network.
#[test]
fn a_running_plugin_is_not_disturbed() {
    let node = Node::new();
    let image = Image::new(&node);
    let plugin = image.path("/opt/cni/bin/bridge");
    // A separate process starts the plugins: a file that this process has open for writing is inherited by any program
    // that another thread starts at that moment, and the kernel does not execute a file that is open for writing.
    node.sh(&format!("mkdir -p $(dirname {0}) && cp /bin/sleep {0}", plugin.display()));
    let mut running = std::process::Command::new(&plugin).arg("60").spawn().unwrap();
    image.install(&["--no-conflist", "--replace"]);
    assert_eq!(running.try_wait().unwrap(), None, "it runs");
    running.kill().unwrap();
    running.wait().unwrap();
}

/// Wherever it is killed, `uninstall` restores the node, and `install` completes the installation.
#[test]
fn killed_at_any_system_call_it_can_be_repaired() {
    let node = Node::new();
    let image = || {
        let image = Image::new(&node);
        image.write("/opt/cni/bin/bridge", "go");
        image.write(
            "/etc/cni/net.d/20-other.conflist",
            r#"{"cniVersion":"1.0.0","name":"o","plugins":[{"type":"ptp"}]}"#,
        );
        image
    };
    let words = ["--replace", "--network", "bridge"];
    let (before, installed, all) = {
        let image = image();
        let before = image.tree();
        let (all, output) = operations(&node, &Call { image: &image, words: words.to_vec() });
        assert_eq!(output.status, 0, "{}", output.stderr);
        (before, image.tree(), all)
    };
    let all: Vec<_> = all.into_iter().filter(|one| !one.line.contains("write(1,")).collect();
    assert!(all.len() > 60, "{}", all.len());
    for operation in &all {
        let image = image();
        let (died, output) = killed_at(&Call { image: &image, words: words.to_vec() }, operation);
        assert!(died, "{operation}: {}", output.stderr);
        image.install(&["--uninstall"]);
        image.assert_tree(&before, &format!("uninstall after install was killed at {operation}"));
    }
    // The same for a second install, and for a killed uninstall.
    for operation in all.iter().step_by(7) {
        let image = image();
        killed_at(&Call { image: &image, words: words.to_vec() }, operation);
        image.install(&words);
        image.assert_tree(&installed, &format!("install after install was killed at {operation}"));
    }
    let back = {
        let image = image();
        image.install(&words);
        operations(&node, &Call { image: &image, words: vec!["--uninstall"] }).0
    };
    for operation in back.iter().filter(|one| !one.line.contains("write(1,")) {
        let image = image();
        image.install(&words);
        let (died, output) = killed_at(&Call { image: &image, words: vec!["--uninstall"] }, operation);
        assert!(died, "{operation}: {}", output.stderr);
        image.install(&["--uninstall"]);
        image.assert_tree(&before, &format!("uninstall after uninstall was killed at {operation}"));
    }
}

/// containerd reads the directory when a name in it is written, renamed or removed, but not when one is created. So a
/// name that ends like a config must only appear by renaming another name in the same directory.
#[test]
fn a_watcher_that_ignores_created_files_sees_the_network() {
    let node = Node::new();
    let image = Image::new(&node);
    image.write(LIST, r#"{"cniVersion":"1.0.0","name":"o","plugins":[{"type":"ptp"}]}"#);
    let is_config = |name: &str| [".conf", ".conflist", ".json"].iter().any(|ending| name.ends_with(ending));
    for words in [vec!["--replace", "--network", "bridge"], vec!["--uninstall"]] {
        let (all, output) = operations(&node, &Call { image: &image, words: words.clone() });
        assert_eq!(output.status, 0, "{}", output.stderr);
        let folder = image.path("/etc/cni/net.d").display().to_string();
        let mut renamed = 0;
        for operation in &all {
            let names: Vec<&str> = operation.line.split('"').skip(1).step_by(2).collect();
            let Some(last) = names.last().filter(|name| name.starts_with(&folder) && is_config(name)) else {
                continue;
            };
            assert!(operation.call.starts_with("rename"), "{words:?}: {operation}");
            assert_eq!(Path::new(names[0]).parent(), Path::new(last).parent(), "{operation}");
            assert!(!is_config(names[0]), "{operation}");
            renamed += 1;
        }
        assert_eq!(renamed, 1, "{words:?}: the network appears once");
    }
    assert!(image.read(LIST).contains("\"name\":\"o\""));
}

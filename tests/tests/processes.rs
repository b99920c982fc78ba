//! The processes that an attachment starts, traced by strace: the runtime executes only foreign plugins, and none if
//! all plugins are Podwire's. And the cost of starting the plugins' program.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use podwire_tests::{ours, podwire, project, Node, GO};

const CHAIN: &str = r#"{"cniVersion": "1.0.0", "name": "five", "plugins": [
  {"type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "subnet": "10.9.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}},
  {"type": "bandwidth", "ingressRate": 8000000, "ingressBurst": 800000, "egressRate": 8000000, "egressBurst": 800000},
  {"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}},
  {"type": "firewall", "backend": "iptables"}]}"#;

/// The programs that `podwire cni VERB` executed, itself first.
fn executed(node: &Node, verb: &str, plugins: &str) -> Vec<String> {
    let mut words = vec!["-f", "-qq", "-e", "trace=execve,execveat", "-e", "signal=none", "-o", "/run/trace"];
    let program = podwire();
    words.extend([program.as_str(), "cni", verb, "five", "/run/netns/pod", "--container", "pod"]);
    words.extend(["--conf-dir", "/run/conf", "--plugin-dir", plugins]);
    if verb == "add" {
        words.extend(["--publish", "8080:80"]);
    }
    let output = node.command("strace").args(&words).stdin(Stdio::null()).output().expect("strace");
    assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
    let trace = node.sh("cat /run/trace");
    let calls = trace.lines().filter(|line| line.contains("execve") && line.ends_with("= 0"));
    calls.filter_map(|line| line.split('"').nth(1)).map(String::from).collect()
}

fn node() -> Node {
    let node = Node::new();
    node.write("/run/conf/five.conflist", CHAIN);
    node.pod("pod");
    node
}

#[test]
fn our_runtime_starts_no_process_for_a_chain_of_our_plugins() {
    let node = node();
    for verb in ["add", "check", "del"] {
        assert_eq!(executed(&node, verb, &ours()), [podwire()], "{verb}");
    }
}

#[test]
fn our_runtime_starts_nothing_but_the_plugins_of_a_foreign_chain() {
    let node = node();
    let direct = |verb: &str| -> Vec<String> {
        let all = executed(&node, verb, GO);
        // The programs that Go's plugins execute (iptables, the IPAM plugin) are not listed.
        all.into_iter().filter(|file| !file.contains("tables") && !file.ends_with("host-local")).collect()
    };
    let plugin = |kind: &str| format!("{GO}/{kind}");
    let forward = ["bridge", "portmap", "bandwidth", "tuning", "firewall"];
    let expected: Vec<String> = std::iter::once(podwire()).chain(forward.map(plugin)).collect();
    assert_eq!(direct("add"), expected);
    let backward: Vec<String> =
        std::iter::once(podwire()).chain(forward.iter().rev().map(|kind| plugin(kind))).collect();
    assert_eq!(direct("del"), backward);
}

#[test]
fn the_plugins_program_is_as_small_as_promised() {
    let promised = 3 * 1024 * 1024;
    let size = std::fs::metadata(project("dist/podwire-cni")).expect("dist/podwire-cni").len();
    assert!(size <= promised, "podwire-cni has {size} bytes");
    let specification = std::fs::read_to_string(project("SPECIFICATION.md")).expect("SPECIFICATION.md");
    assert!(specification.contains("3 MiB"), "SPECIFICATION.md has the promise");
}

/// The output of `readelf`: the program's header, its segments and its dynamic section.
fn elf(program: &str) -> String {
    let flags = ["--file-header", "--program-headers", "--dynamic", "--wide"];
    let output = Command::new("readelf").args(flags).arg(project(program)).output().expect("readelf");
    String::from_utf8(output.stdout).expect("text")
}

/// `podwire` is a root daemon that listens: its addresses are random, and its relocations read-only once it runs.
#[test]
fn podwire_is_static_pie_with_full_relro() {
    let elf = elf("dist/podwire");
    for expected in ["DYN (Position-Independent", "GNU_RELRO", "(FLAGS_1)"] {
        assert!(elf.contains(expected), "{expected} is missing:\n{elf}");
    }
    assert!(elf.contains("NOW") && elf.contains("PIE"), "relocations are not bound at the start:\n{elf}");
    assert!(!elf.contains("INTERP") && !elf.contains("(NEEDED)"), "it is not static:\n{elf}");
}

/// `podwire-cni` starts for every pod, and has no relocations to do.
#[test]
fn podwire_cni_is_static_and_not_position_independent() {
    let elf = elf("dist/podwire-cni");
    assert!(elf.contains("EXEC (Executable file)"), "{elf}");
    assert!(!elf.contains("INTERP") && !elf.contains("(NEEDED)"), "it is not static:\n{elf}");
}

#[test]
fn starting_a_plugin_takes_few_system_calls() {
    let node = Node::new();
    let script = format!(
        "CNI_COMMAND=VERSION strace -f -qq -o /run/trace {}/bridge > /dev/null && cat /run/trace",
        ours()
    );
    let trace = node.sh(&script);
    let calls = trace.lines().count();
    assert!(calls <= 30, "{calls} system calls:\n{trace}");
}

/// Panics and logs name source files: by their place in the project or in the registry, not on the machine that built them.
#[test]
fn no_program_contains_a_directory_of_the_build_machine() {
    let variable = |name: &str| std::env::var(name).ok().filter(|path| !path.is_empty());
    let home = variable("HOME").unwrap_or_else(|| "/root".into());
    // `/root/` alone is a part of paths in /proc too.
    let dirs: [PathBuf; 4] = [
        project("."),
        format!("{home}/.").into(),
        variable("CARGO_HOME").unwrap_or_else(|| format!("{home}/.cargo")).into(),
        variable("RUSTUP_HOME").unwrap_or_else(|| format!("{home}/.rustup")).into(),
    ];
    let mut found = Vec::new();
    for program in ["dist/podwire", "dist/podwire-cni"] {
        let bytes = std::fs::read(project(program)).expect(program);
        let text = String::from_utf8_lossy(&bytes);
        for dir in &dirs {
            let dir = dir.display().to_string();
            let at = text.find(&dir);
            found.extend(
                at.map(|at| format!("{program}: {}", text[at..].chars().take(120).collect::<String>())),
            );
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

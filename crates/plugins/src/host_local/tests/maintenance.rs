//! CHECK, GC and STATUS.

use podwire_cni_spec::Ip;

use super::*;

fn recorded(ips: &[&str]) -> Option<Attachment> {
    let ips = ips.iter().map(|ip| Ip::new(ip.parse().unwrap())).collect();
    Some(Attachment { ips, ..Attachment::default() })
}

#[test]
fn check_says_what_is_missing() {
    let mut node = Node::subnet("10.1.0.0/24");
    let text = |node: &Node| node.check("c").unwrap_err().to_cni().msg;
    let start = "host-local: Failed to find address added by container c";
    let folder = node.folder().display().to_string();
    assert_eq!(text(&node), format!("{start}: there is no folder {folder}"));
    node.add("b");
    assert_eq!(text(&node), format!("{start} as eth0 in {folder}"));
    node.add("c");
    node.check("c").unwrap();
    node.prev = recorded(&["10.1.0.3/24", "192.0.2.7/24"]);
    node.check("c").unwrap();
    node.prev = recorded(&["10.1.0.3/24", "10.1.0.9/24"]);
    assert_eq!(text(&node), format!("{start}: {folder}/10.1.0.9 is missing"));
    node.prev = recorded(&["10.1.0.2/24"]);
    assert_eq!(text(&node), format!("{start}: 10.1.0.2 belongs to b (eth0) ({folder}/10.1.0.2)"));
}

#[test]
fn gc_keeps_what_is_valid_and_nothing_else() {
    let mut node = Node::subnet("10.1.0.0/24");
    node.gc(&[]);
    assert!(!node.folder().exists());
    for container in ["a", "b", "c"] {
        node.add(container);
    }
    node.write("10.1.0.20", "a\r\neth1");
    node.write("10.1.0.21", "old-valid");
    node.write("10.1.0.22", "old-gone");
    node.write("10.1.0.23", "");
    node.gc(&[("a", "eth0"), ("c", "net9"), ("old-valid", "eth0")]);
    assert_eq!(node.taken(), ["10.1.0.2", "10.1.0.21"]);
    assert_eq!(scans(|| node.check("a").unwrap()), 0);
    assert!(node.check("b").is_err());
    node.gc(&[]);
    assert!(node.taken().is_empty());
    assert_eq!(node.owners(), 0);
}

#[test]
fn gc_without_a_list_removes_nothing() {
    let node = Node::subnet("10.1.0.0/24");
    node.add("a");
    assert!(super::super::gc(&node.request(Command::Gc, "", ""), &node.env()).is_err());
    assert_eq!(node.taken(), ["10.1.0.2"]);
}

#[test]
fn status_fails_when_a_set_is_full() {
    let node = Node::new(json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/126"}]]}));
    assert_eq!(node.status(), Ok(()));
    node.add("a");
    node.add("b");
    let text = "no IP addresses available in range set: fd00::1-fd00::3";
    assert_eq!(node.status(), Err((50, text.into())));
    fs::write(node.folder().join("fd00::3"), "").unwrap();
    assert_eq!(node.status(), Ok(()), "what a crash left can be had");
    node.del("b");
    node.write("fd00::9", "elsewhere");
    assert_eq!(node.status(), Ok(()));
}

#[test]
fn status_fails_for_bad_configs_and_accepts_ranges_of_the_runtime() {
    let mut node = Node::new(json!({"subnet": "10.1.0.0/32"}));
    assert_eq!(node.status().unwrap_err().0, 7);
    node.config["ipam"] = json!({});
    assert_eq!(node.status(), Err((7, "no IP ranges specified".into())));
    node.config["capabilities"] = json!({"ipRanges": true});
    assert_eq!(node.status(), Ok(()));
}

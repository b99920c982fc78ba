//! The two sources that are files: SQLite and a list. Changes are noticed without polling.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use podwire_subnets::{
    Backend, Embedded, Health, PodCidrs, Registration, Snapshot, Source, StaticList, Underlay, Vtep, Watch,
};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("podwire-files-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn until(watch: &mut Watch, wanted: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let mut snapshot = watch.latest();
    let end = tokio::time::Instant::now() + Duration::from_secs(60);
    while !wanted(&snapshot) {
        snapshot = tokio::time::timeout_at(end, watch.changed())
            .await
            .unwrap_or_else(|_| panic!("not within 60 s; the last was {snapshot:?}"));
    }
    snapshot
}

fn count(snapshot: &Snapshot) -> usize {
    snapshot.nodes.as_ref().map_or(0, |nodes| nodes.len())
}

fn registration(name: &str) -> Registration {
    let underlay = Underlay { v4: Some([192, 0, 2, 1].into()), v6: "2001:db8::1".parse().ok() };
    let backend = Backend::vxlan(Some(Vtep { vni: 1, mac: "02:00:00:00:00:01".into() }), None);
    Registration { name: name.into(), underlay, backend, ..Registration::default() }
}

const SMALL: &str = r#"{"Network": "10.8.0.0/28"}"#;

#[tokio::test]
async fn a_subnet_is_assigned_once_kept_over_a_restart_and_released() {
    let scratch = Scratch::new("once");
    let path = scratch.0.join("deep/down/cluster.db");
    let store = Embedded::open(&path).await.unwrap();
    let error = store.network().await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("flannel config not found in {}", path.display())), "{error}");
    assert!(
        store.set_network(r#"{"Network": "10.8.0.0/29"}"#).await.is_err(),
        "an invalid config is not written"
    );
    store.set_network(SMALL).await.unwrap();
    let source = Source::Embedded(store);
    assert_eq!(source.find_previous(&registration("a")).await.unwrap(), None);
    let a = source.acquire(&registration("a")).await.unwrap();
    let b = source.acquire(&registration("b")).await.unwrap();
    let c = source.acquire(&registration("c")).await.unwrap();
    let error = source.acquire(&registration("d")).await.unwrap_err().to_string();
    assert!(
        error.starts_with("out of subnets: all of 10.8.0.4 to 10.8.0.12 of /30 are in use (3 leases, "),
        "{error}"
    );
    source.release(&b).await.unwrap();
    let d = source.acquire(&registration("d")).await.unwrap();
    assert_eq!(d.pod_cidrs, b.pod_cidrs);

    let again = Source::Embedded(Embedded::open(&path).await.unwrap());
    assert_eq!(again.find_previous(&registration("a")).await.unwrap(), Some(a.clone()));
    assert_eq!(again.acquire(&registration("a")).await.unwrap(), a);
    again.release(&c).await.unwrap();
    let as_before = Registration { previous: c.pod_cidrs, ..registration("e") };
    assert_eq!(again.acquire(&as_before).await.unwrap().pod_cidrs, c.pod_cidrs);
    let held = tokio::time::timeout(Duration::from_millis(50), again.keep(&a)).await;
    assert!(held.is_err(), "it never ends");
}

#[tokio::test]
async fn a_watch_reports_the_commits_of_other_processes() {
    let scratch = Scratch::new("watch");
    let path = scratch.0.join("cluster.db");
    let store = Embedded::open(&path).await.unwrap();
    store.set_network(r#"{"Network": "10.8.0.0/16"}"#).await.unwrap();
    let mut watch = store.watch();
    let first = until(&mut watch, |snapshot| snapshot.nodes.is_some()).await;
    assert_eq!((count(&first), first.health), (0, Health::Current));
    // Each commit is reported without the next one.
    for number in 1..=50 {
        store.acquire(&registration(&format!("n{number}"))).await.unwrap();
        until(&mut watch, |snapshot| count(snapshot) == number).await;
    }
    let output = std::process::Command::new("python3")
        .arg("-c")
        .arg("import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute(\"DELETE FROM node WHERE name = 'n7'\"); c.commit()")
        .arg(&path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    until(&mut watch, |snapshot| count(snapshot) == 49).await;
}

#[tokio::test]
async fn an_idle_watch_does_no_io() {
    let scratch = Scratch::new("rest");
    let store = Embedded::open(scratch.0.join("cluster.db")).await.unwrap();
    store.set_network(SMALL).await.unwrap();
    let mut watch = store.watch();
    until(&mut watch, |snapshot| snapshot.nodes.is_some()).await;
    store.acquire(&registration("a")).await.unwrap();
    until(&mut watch, |snapshot| count(snapshot) == 1).await;
    let mut inotify = inotify::Inotify::init().unwrap();
    inotify.watches().add(&scratch.0, inotify::WatchMask::ALL_EVENTS).unwrap();
    let mut buffer = [0; 4096];
    // Wait until the watch has been idle for two seconds.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        if inotify.read_events(&mut buffer).is_err() {
            break;
        }
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let events = inotify.read_events(&mut buffer);
    assert_eq!(events.unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "no file was read or written");
}

#[tokio::test]
async fn an_invalid_row_is_skipped_and_a_missing_file_is_reported() {
    let scratch = Scratch::new("nonsense");
    let path = scratch.0.join("cluster.db");
    let store = Embedded::open(&path).await.unwrap();
    store.set_network(SMALL).await.unwrap();
    store.acquire(&registration("a")).await.unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "only its owner reads it");
    let mut watch = store.watch();
    until(&mut watch, |snapshot| count(snapshot) == 1).await;
    let insert = "INSERT INTO node (name, v4, backend) VALUES ('x', 'nonsense', 'vxlan')";
    rusqlite::Connection::open(&path).unwrap().execute(insert, []).unwrap();
    let seen = until(&mut watch, |snapshot| !snapshot.skipped.is_empty()).await;
    assert_eq!((count(&seen), seen.skipped[0].name.as_str()), (1, "x"));
    assert!(seen.skipped[0].reason.starts_with("column v4: "), "{:?}", seen.skipped);
    std::fs::rename(&path, scratch.0.join("elsewhere")).unwrap();
    std::fs::remove_file(scratch.0.join("cluster.db-wal")).unwrap();
    let lost = until(&mut watch, |snapshot| matches!(snapshot.health, Health::Stale { .. })).await;
    assert_eq!(count(&lost), 1, "what is known stays known");
    assert!(lost.health.to_string().contains("cluster.db"), "{}", lost.health);
    // A new file with the same name is used.
    let store = Embedded::open(&path).await.unwrap();
    until(&mut watch, |snapshot| snapshot.health == Health::Current && count(snapshot) == 0).await;
    store.set_network(SMALL).await.unwrap();
    store.acquire(&registration("b")).await.unwrap();
    until(&mut watch, |snapshot| count(snapshot) == 1).await;
}

/// SQLite itself goes on with a file that has no name any more, which no other process writes to.
#[tokio::test]
async fn a_file_that_is_moved_or_replaced_is_reported() {
    let scratch = Scratch::new("moved");
    let (path, aside, other) =
        (scratch.0.join("cluster.db"), scratch.0.join("aside.db"), scratch.0.join("other.db"));
    let store = Embedded::open(&path).await.unwrap();
    store.set_network(SMALL).await.unwrap();
    store.acquire(&registration("a")).await.unwrap();
    let mut watch = store.watch();
    until(&mut watch, |snapshot| count(snapshot) == 1).await;
    let is_stale = |snapshot: &Snapshot| matches!(snapshot.health, Health::Stale { .. });
    let is_current = |snapshot: &Snapshot| snapshot.health == Health::Current;

    std::fs::rename(&path, &aside).unwrap();
    let lost = until(&mut watch, is_stale).await;
    assert!(lost.health.to_string().contains("the file was removed while it was open"), "{}", lost.health);
    assert_eq!(count(&lost), 1, "what is known stays known");
    std::fs::rename(&aside, &path).unwrap();
    until(&mut watch, is_current).await;

    let replacement = Embedded::open(&other).await.unwrap();
    replacement.set_network(SMALL).await.unwrap();
    for name in ["b", "c"] {
        replacement.acquire(&registration(name)).await.unwrap();
    }
    std::fs::rename(&other, &path).unwrap();
    let replaced = until(&mut watch, is_stale).await;
    assert!(replaced.health.to_string().contains("was replaced by another one"), "{}", replaced.health);
    until(&mut watch, |snapshot| is_current(snapshot) && count(snapshot) == 2).await;
}

#[tokio::test]
async fn the_subnet_of_an_invalid_row_is_taken() {
    let scratch = Scratch::new("taken");
    let path = scratch.0.join("cluster.db");
    let store = Embedded::open(&path).await.unwrap();
    store.set_network(SMALL).await.unwrap();
    let insert =
        "INSERT INTO node (name, v4, backend, data) VALUES ('x', '10.8.0.4/30', 'vxlan', 'nonsense'), \
                  ('y', '10.8.0.8/31', 'vxlan', NULL)";
    rusqlite::Connection::open(&path).unwrap().execute(insert, []).unwrap();
    let node = store.acquire(&registration("a")).await.unwrap();
    assert_eq!(node.pod_cidrs.v4.unwrap().to_string(), "10.8.0.12/30");
    assert!(store.acquire(&registration("b")).await.is_err());
    store.acquire(&registration("x")).await.unwrap();
}

#[tokio::test]
async fn a_foreign_file_is_rejected() {
    let scratch = Scratch::new("foreign");
    let path = scratch.0.join("other.db");
    rusqlite::Connection::open(&path).unwrap().execute("CREATE TABLE t (a)", []).unwrap();
    let error = Embedded::open(&path).await.unwrap_err().to_string();
    assert!(error.contains("has schema version 0, and this program knows 1"), "{error}");
    std::fs::write(scratch.0.join("text"), "no database at all, but long enough to be read as one").unwrap();
    let error = Embedded::open(scratch.0.join("text")).await.unwrap_err().to_string();
    assert!(error.contains("not a database"), "{error}");
}

fn list(nodes: &[u8]) -> String {
    let entry =
        |n: &u8| format!(r#"{{"name": "n{n}", "ranges": ["10.244.{n}.0/24"], "underlay": ["192.0.2.{n}"]}}"#);
    let nodes: Vec<String> = nodes.iter().map(entry).collect();
    format!(
        r#"{{"network": {{"Network": "10.244.0.0/16", "Backend": {{"Type": "host-gw"}}}}, "nodes": [{}]}}"#,
        nodes.join(", ")
    )
}

#[tokio::test]
async fn a_list_is_read_again_when_it_changes_and_an_invalid_one_changes_nothing() {
    let scratch = Scratch::new("list");
    let path = scratch.0.join("nodes.json");
    let source = Source::Static(StaticList::new(&path));
    let mut watch = source.watch();
    let missing = until(&mut watch, |snapshot| matches!(snapshot.health, Health::Stale { .. })).await;
    assert!(
        missing.nodes.is_none() && missing.health.to_string().contains("No such file"),
        "{}",
        missing.health
    );
    std::fs::write(&path, list(&[1, 2])).unwrap();
    until(&mut watch, |snapshot| count(snapshot) == 2 && snapshot.health == Health::Current).await;
    let own = source.acquire(&registration("n2")).await.unwrap();
    assert_eq!(own.pod_cidrs, PodCidrs { v4: "10.244.2.0/24".parse().ok(), v6: None });
    let error = source.acquire(&registration("n9")).await.unwrap_err().to_string();
    assert!(
        error.contains("node \"n9\" is not in") && error.contains("add it to the file's nodes"),
        "{error}"
    );

    // Editors and ConfigMap volumes replace files by renaming.
    let replace = |nodes: &[u8]| {
        std::fs::write(scratch.0.join("new"), list(nodes)).unwrap();
        std::fs::rename(scratch.0.join("new"), &path).unwrap();
    };
    replace(&[1, 2, 2]);
    let wrong = until(&mut watch, |snapshot| snapshot.health != Health::Current).await;
    assert_eq!(count(&wrong), 2);
    assert!(wrong.health.to_string().contains("node \"n2\" is listed twice"), "{}", wrong.health);
    replace(&[1, 2, 3]);
    until(&mut watch, |snapshot| count(snapshot) == 3 && snapshot.health == Health::Current).await;
}

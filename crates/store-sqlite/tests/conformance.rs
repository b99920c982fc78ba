//! The conformance suite on SQLite files.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use podwire_block_ipam::store::{Store, StoreError};
use podwire_store_sqlite::SqliteStore;

/// Longer than any test waits.
const WAIT: std::time::Duration = std::time::Duration::from_secs(20);

/// A temporary directory that is removed after the test.
struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> TempDir {
        let path = std::env::temp_dir().join(format!("podwire-sqlite-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_file_passes_the_suite() {
    let dir = TempDir::new("suite");
    let path = dir.0.join("ipam.db");
    podwire_block_ipam::conformance::run(&|| Box::new(SqliteStore::open(&path).unwrap()));
}

#[test]
fn entries_are_there_after_the_file_is_opened_again() {
    let dir = TempDir::new("again");
    let path = dir.0.join("ipam.db");
    let revision = SqliteStore::open(&path).unwrap().create("/a", b"1").unwrap();
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.get("/a").unwrap().unwrap().revision, revision);
    store.delete("/a", revision).unwrap();
    drop(store);
    let again = SqliteStore::open(&path).unwrap().create("/a", b"1").unwrap();
    assert_ne!(again, revision, "revisions are not reused");
}

#[test]
fn only_the_owner_can_read_the_files() {
    let dir = TempDir::new("mode");
    let store = SqliteStore::open(&dir.0.join("ipam.db")).unwrap();
    store.create("/a", b"1").unwrap();
    for entry in std::fs::read_dir(&dir.0).unwrap().flatten() {
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.path());
    }
}

#[test]
fn clients_can_create_a_file_concurrently() {
    let dir = TempDir::new("race");
    let path = dir.0.join("ipam.db");
    std::thread::scope(|scope| {
        for number in 0..6 {
            let path = &path;
            scope.spawn(move || SqliteStore::open(path).unwrap().create(&format!("/{number}"), b"").unwrap());
        }
    });
    assert_eq!(SqliteStore::open(&path).unwrap().list("/").unwrap().len(), 6);
}

#[test]
fn a_file_that_is_not_a_database_is_reported_with_its_path() {
    let dir = TempDir::new("broken");
    let path = dir.0.join("ipam.db");
    std::fs::write(&path, "this is not a database, however long it may be ".repeat(100)).unwrap();
    let error = SqliteStore::open(&path).unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable { verb: "open", .. }), "{error}");
    assert!(error.to_string().contains("ipam.db") && error.to_string().contains("not a database"), "{error}");
}

#[test]
fn a_file_that_is_removed_or_replaced_while_it_is_open_is_an_error() {
    let dir = TempDir::new("removed");
    let (path, aside) = (dir.0.join("ipam.db"), dir.0.join("aside.db"));
    let store = SqliteStore::open(&path).unwrap();
    let revision = store.create("/a", b"1").unwrap();
    let mut follow = store.follow(&["/"]).unwrap();
    assert_eq!(follow.wait(WAIT).unwrap().unwrap().len(), 1);
    std::fs::rename(&path, &aside).unwrap();
    let begin = std::time::Instant::now();
    let error = follow.wait(WAIT).unwrap_err().to_string();
    assert!(error.contains("was removed while it was open"), "{error}");
    assert!(begin.elapsed() < WAIT, "the watch notices it at once");
    for error in [
        store.get("/a").unwrap_err(),
        store.list("/").unwrap_err(),
        store.create("/b", b"1").unwrap_err(),
        store.update("/a", b"2", revision).unwrap_err(),
        store.delete("/a", revision).unwrap_err(),
    ] {
        assert!(error.to_string().contains("was removed while it was open"), "{error}");
    }
    // It is put back.
    std::fs::rename(&aside, &path).unwrap();
    assert_eq!(store.get("/a").unwrap().unwrap().value, b"1");
    // Another one takes its place.
    std::fs::write(&aside, "").unwrap();
    std::fs::rename(&aside, &path).unwrap();
    let error = store.get("/a").unwrap_err().to_string();
    assert!(error.contains("was replaced by another one"), "{error}");
}

#[test]
fn a_directory_that_is_moved_is_an_error() {
    let dir = TempDir::new("directory");
    let (state, aside) = (dir.0.join("state"), dir.0.join("aside"));
    std::fs::create_dir(&state).unwrap();
    let store = SqliteStore::open(&state.join("ipam.db")).unwrap();
    let mut follow = store.follow(&["/"]).unwrap();
    assert_eq!(follow.wait(WAIT).unwrap().unwrap().len(), 0);
    std::fs::rename(&state, &aside).unwrap();
    let begin = std::time::Instant::now();
    let error = follow.wait(WAIT).unwrap_err().to_string();
    assert!(error.contains("was removed while it was open"), "{error}");
    assert!(begin.elapsed() < WAIT, "the watch notices it at once");
}

//! The suite that every store has to pass, on files.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use podwire_block_ipam::store::{Store, StoreError};
use podwire_store_sqlite::SqliteStore;

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("podwire-sqlite-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_file_does_what_every_store_must() {
    let folder = Folder::new("suite");
    let path = folder.0.join("ipam.db");
    podwire_block_ipam::conformance::run(&|| Box::new(SqliteStore::open(&path).unwrap()));
}

#[test]
fn what_was_written_is_there_when_the_file_is_opened_again() {
    let folder = Folder::new("again");
    let path = folder.0.join("ipam.db");
    let revision = SqliteStore::open(&path).unwrap().create("/a", b"1").unwrap();
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.get("/a").unwrap().unwrap().revision, revision);
    store.delete("/a", revision).unwrap();
    drop(store);
    let again = SqliteStore::open(&path).unwrap().create("/a", b"1").unwrap();
    assert_ne!(again, revision, "revisions go on where they were");
}

#[test]
fn only_its_owner_reads_the_file_and_what_stands_beside_it() {
    let folder = Folder::new("mode");
    let store = SqliteStore::open(&folder.0.join("ipam.db")).unwrap();
    store.create("/a", b"1").unwrap();
    for entry in std::fs::read_dir(&folder.0).unwrap().flatten() {
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.path());
    }
}

#[test]
fn clients_that_open_a_new_file_at_once_all_can() {
    let folder = Folder::new("race");
    let path = folder.0.join("ipam.db");
    std::thread::scope(|scope| {
        for number in 0..6 {
            let path = &path;
            scope.spawn(move || SqliteStore::open(path).unwrap().create(&format!("/{number}"), b"").unwrap());
        }
    });
    assert_eq!(SqliteStore::open(&path).unwrap().list("/").unwrap().len(), 6);
}

#[test]
fn what_is_no_database_is_told_with_its_path() {
    let folder = Folder::new("broken");
    let path = folder.0.join("ipam.db");
    std::fs::write(&path, "this is not a database, however long it may be ".repeat(100)).unwrap();
    let error = SqliteStore::open(&path).unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable { verb: "open", .. }), "{error}");
    assert!(error.to_string().contains("ipam.db") && error.to_string().contains("not a database"), "{error}");
}

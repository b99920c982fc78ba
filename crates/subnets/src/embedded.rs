//! The embedded store: an SQLite file on one machine.
//!
//! Several processes share it: the agents of a lab's nodes, or one agent and the tools beside it. A range is given out in
//! one transaction that holds the write lock from its first read, so no two processes choose from the same free pod_cidrs;
//! a process that dies in the middle leaves what was before, since SQLite's log has no commit of it. Two unique columns
//! would refuse a second owner even then.
//!
//! Commits go to the disk before they count (`synchronous = FULL`): a range that was given out is still known after a power cut.

mod changes;
mod row;

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};

use crate::choice;
use crate::snapshot::{SnapshotSender, Watch};
use crate::{Error, LeaseTerm, NetConf, Node, PodCidrs, Registration, Result};

/// How long a process waits for another's transaction. Each takes a few milliseconds, and ends with its process.
const PATIENCE: Duration = Duration::from_secs(10);

/// The layout that this program writes and reads.
const LAYOUT: i64 = 1;

const TABLES: &str = "
    CREATE TABLE network (one INTEGER PRIMARY KEY CHECK (one = 1), config TEXT NOT NULL) STRICT;
    CREATE TABLE node (
        name TEXT PRIMARY KEY NOT NULL,
        v4 TEXT UNIQUE,
        v6 TEXT UNIQUE,
        underlay_v4 TEXT,
        underlay_v6 TEXT,
        backend TEXT NOT NULL,
        data TEXT,
        data_v6 TEXT
    ) STRICT;
    PRAGMA user_version = 1;";

/// An SQLite file with the cluster's nodes.
#[derive(Clone, Debug)]
pub struct Embedded {
    path: PathBuf,
}

impl Embedded {
    /// Opens the file, and makes it if it is not there.
    pub async fn open(path: impl Into<PathBuf>) -> Result<Embedded> {
        let store = Embedded { path: path.into() };
        let path = store.path.clone();
        blocking(move || create(&path)).await?;
        store
            .with("read", |connection| connection.query_row("SELECT count(*) FROM node", [], |_| Ok(())))
            .await?;
        Ok(store)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the network's config, net-conf.json's text. The same again changes nothing and wakes nobody.
    pub async fn set_network(&self, text: &str) -> Result<()> {
        NetConf::parse(&self.origin(), text)?.pools()?;
        let text = text.to_owned();
        self.with("write the config", move |connection| {
            let there: Option<String> =
                connection.query_row("SELECT config FROM network", [], |row| row.get(0)).optional()?;
            if there.as_ref() != Some(&text) {
                connection.execute("INSERT OR REPLACE INTO network (one, config) VALUES (1, ?1)", [&text])?;
            }
            Ok(())
        })
        .await
    }

    /// The network's config.
    pub async fn network(&self) -> Result<NetConf> {
        let text: Option<String> = self
            .with("read the config", |connection| {
                connection.query_row("SELECT config FROM network", [], |row| row.get(0)).optional()
            })
            .await?;
        self.config(text)
    }

    /// What the file says of this node from before.
    pub async fn find_previous(&self, registration: &Registration) -> Result<Option<Node>> {
        let (nodes, _) = self.with("read nodes", row::all).await?;
        Ok(nodes.into_iter().find(|node| node.name == registration.name))
    }

    /// Gives the node a range that no other has: its own if it has one, else what it had before, else a free one.
    pub async fn acquire(&self, registration: &Registration) -> Result<Node> {
        let (store, registration) = (self.clone(), registration.clone());
        blocking(move || {
            let mut connection = connect(&store.path)?;
            let failed = |doing| store.failed(doing);
            let transaction = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .map_err(failed("wait for the write lock"))?;
            let text: Option<String> = transaction
                .query_row("SELECT config FROM network", [], |row| row.get(0))
                .optional()
                .map_err(failed("read the config"))?;
            let pools = store.config(text)?.pools()?;
            let (nodes, _) = row::all(&transaction).map_err(failed("read nodes"))?;
            let own = nodes.iter().find(|node| node.name == registration.name).map(|node| node.pod_cidrs);
            let taken = row::pod_cidrs(&transaction).map_err(failed("read pod_cidrs"))?;
            let others: Vec<PodCidrs> = taken
                .into_iter()
                .filter(|(name, _)| *name != registration.name)
                .map(|(_, pod_cidrs)| pod_cidrs)
                .collect();
            let pod_cidrs = match own.filter(|own| pools.fit(*own)) {
                Some(own) => own,
                None if choice::may_keep(&pools, registration.previous, &others) => registration.previous,
                None => choice::choose(&pools, &others)?,
            };
            let Registration { name, underlay, backend, .. } = registration;
            let node = Node { name, pod_cidrs, underlay, backend, lease_term: LeaseTerm::Permanent };
            if !nodes.contains(&node) {
                row::put(&transaction, &node).map_err(failed("write a node"))?;
                transaction.commit().map_err(failed("commit"))?;
            }
            Ok(node)
        })
        .await
    }

    /// Gives a node's range back. A node that is not there is as good as gone.
    pub async fn release(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.with("remove a node", move |connection| {
            connection.execute("DELETE FROM node WHERE name = ?1", [&name]).map(|_| ())
        })
        .await
    }

    /// All nodes, and all changes of them.
    pub fn watch(&self) -> Watch {
        let store = self.clone();
        SnapshotSender::start(|sender| changes::follow(store, sender))
    }

    async fn with<T: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let store = self.clone();
        blocking(move || work(&connect(&store.path)?).map_err(store.failed(doing))).await
    }

    fn config(&self, text: Option<String>) -> Result<NetConf> {
        let hint = "the agent writes it when it starts with a net-conf.json";
        let missing = || Error::NoConfig { place: self.path.display().to_string(), hint: hint.into() };
        NetConf::parse(&self.origin(), &text.ok_or_else(missing)?)
    }

    fn origin(&self) -> String {
        format!("{}, network.config", self.path.display())
    }

    fn failed(&self, doing: &'static str) -> impl Fn(rusqlite::Error) -> Error + use<> {
        let path = self.path.clone();
        move |source| Error::Database { path: path.clone(), doing, source }
    }
}

/// Makes the file, unless it is there. It is made under another name and then linked: whoever sees it sees all tables
/// in it, and of two who make it at once, one wins and the other takes that one's.
fn create(path: &Path) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = folder.join(format!(".{name}.{}.{:08x}", std::process::id(), podwire_kubernetes::random_u32()));
    // Nobody else is to read it. What SQLite makes beside the file has the file's mode.
    let file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&new);
    file.map_err(Error::file("create", &new))?;
    let make = || {
        let connection = Connection::open(&new)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.execute_batch(TABLES)?;
        // Closing writes the log back into the file, and removes it.
        connection.close().map_err(|(_, error)| error)
    };
    let made = make().map_err(|source| Error::Database { path: path.into(), doing: "create", source });
    let linked = made.and_then(|()| match fs::hard_link(&new, path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(Error::file("create", path)(error)),
        _ => Ok(()),
    });
    let _ = fs::remove_file(&new);
    linked
}

/// A connection of one's own.
fn connect(path: &Path) -> Result<Connection> {
    let failed = |source| Error::Database { path: path.into(), doing: "open", source };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    connection.busy_timeout(PATIENCE).map_err(failed)?;
    connection.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
    let layout: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
    match layout {
        LAYOUT => Ok(connection),
        other => {
            let why = format!("has layout {other}, and this program knows {LAYOUT}: a newer podwire wrote it, or it is not podwire's");
            Err(Error::Unreadable { object: path.display().to_string(), why })
        }
    }
}

/// SQLite's calls block; the agent's loop must not.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        // It ends in this way only with the runtime, or when the work panicked.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

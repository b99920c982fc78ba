//! The embedded store: an SQLite file on one machine.
//!
//! Several processes share it: the agents of a lab's nodes, or one agent and the CLI. A subnet is assigned in one
//! transaction that holds the write lock from its first read, so no two processes choose from the same free subnets. A
//! process that dies in a transaction changes nothing. Two unique columns refuse a second owner even then.
//!
//! Commits are flushed to disk (`synchronous = FULL`): an assigned subnet is still known after a power failure.

mod row;
mod watch;

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};

use podwire_fs::FileError;

use crate::error::{Error, Result};
use crate::netconf::NetConf;
use crate::node::{LeaseTerm, Node, PodCidrs, Registration};
use crate::subnet_choice;

/// How long a process waits for the transaction of another. Each takes a few milliseconds, and ends with its process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// The schema version that this program reads and writes.
const SCHEMA_VERSION: i64 = 1;

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
    /// Opens the file, and creates it if it does not exist.
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

    /// Sets the network config, the text of net-conf.json. An unchanged config is not written.
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

    /// The network config.
    pub async fn network(&self) -> Result<NetConf> {
        let text: Option<String> = self
            .with("read the config", |connection| {
                connection.query_row("SELECT config FROM network", [], |row| row.get(0)).optional()
            })
            .await?;
        self.config(text)
    }

    /// The record of this node from before a restart.
    pub async fn find_previous(&self, registration: &Registration) -> Result<Option<Node>> {
        let (nodes, _) = self.with("read nodes", row::all).await?;
        Ok(nodes.into_iter().find(|node| node.name == registration.name))
    }

    /// Assigns a node subnets that no other node has: those that it has, its previous ones, or free ones.
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
                None if subnet_choice::may_keep(&pools, registration.previous, &others) => {
                    registration.previous
                }
                None => subnet_choice::choose(&pools, &others)?,
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

    /// Removes a node. That it does not exist is fine.
    pub async fn release(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.with("remove a node", move |connection| {
            connection.execute("DELETE FROM node WHERE name = ?1", [&name]).map(|_| ())
        })
        .await
    }

    async fn with<T: Send + 'static>(
        &self,
        doing: &'static str,
        action: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let store = self.clone();
        blocking(move || action(&connect(&store.path)?).map_err(store.failed(doing))).await
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

/// Creates the file, unless it exists. It is created under a temporary name and then linked (link(2) fails if the name
/// exists): every process sees all tables, and of two processes that create it at once, one wins and both use its file.
fn create(path: &Path) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let dir = path.parent().unwrap_or(Path::new("/"));
    podwire_fs::create_state_dir(dir).map_err(FileError::at("create", dir))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = dir.join(format!(".{name}.{}.{:08x}", std::process::id(), podwire_kubernetes::random_u32()));
    // Only the owner may read it. SQLite gives the files beside it the same mode.
    let file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&new);
    file.map_err(FileError::at("create", &new))?;
    let create = || {
        let connection = Connection::open(&new)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.execute_batch(TABLES)?;
        // Closing writes the log back into the file and removes it.
        connection.close().map_err(|(_, error)| error)
    };
    let created = create().map_err(|source| Error::Database { path: path.into(), doing: "create", source });
    let linked = created.and_then(|()| match fs::hard_link(&new, path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(FileError::at("create", path)(error).into())
        }
        _ => Ok(()),
    });
    let _ = fs::remove_file(&new);
    linked
}

/// Opens a connection.
fn connect(path: &Path) -> Result<Connection> {
    let failed = |source| Error::Database { path: path.into(), doing: "open", source };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
    connection.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
    match version {
        SCHEMA_VERSION => Ok(connection),
        other => {
            let why = format!("it has schema version {other}, and this program knows {SCHEMA_VERSION}: a newer podwire wrote it, or it is not podwire's");
            Err(Error::Unreadable { object: path.display().to_string(), why })
        }
    }
}

/// Runs an SQLite operation, which blocks, on another thread.
async fn blocking<T: Send + 'static>(action: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(action).await {
        Ok(result) => result,
        // Only a panic of the action, or the end of the runtime.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

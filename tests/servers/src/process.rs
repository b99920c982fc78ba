//! Child processes, ports and temporary directories.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A child process that is killed when this value is dropped.
pub struct ChildGuard(pub Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program and appends its output to a log file.
pub fn spawn_logged(command: &mut Command, log: &Path) -> ChildGuard {
    let stderr = File::options().create(true).append(true).open(log).unwrap();
    let stdout = stderr.try_clone().unwrap();
    let child = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn();
    ChildGuard(child.unwrap_or_else(|error| panic!("{command:?}: {error}")))
}

/// A loopback port that is free now. Another program may take it before its user listens on it.
pub fn free_port() -> u16 {
    let [port] = free_ports();
    port
}

/// Different loopback ports that are free now.
pub(crate) fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// A temporary directory that is removed when this value is dropped.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    /// Creates a directory with a unique name.
    pub(crate) fn new(purpose: &str) -> TempDir {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("podwire-{purpose}-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    /// Keeps the directory of a failed test: it holds the servers' logs.
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("files are kept in {}", self.0.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// Runs openssl in a directory.
pub(crate) fn openssl(dir: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .args(arguments.split_whitespace())
        .current_dir(dir)
        .output()
        .expect("openssl");
    assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

//! Network namespaces. A thread enters one only inside [`Netns::run`] and is back when that returns, so that it never
//! stays in the wrong namespace.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use podwire_netlink::sys;

use crate::error::{Error, Result};

/// Namespaces belong to threads; `/proc/self` would be the main thread's.
const OWN: &str = "/proc/thread-self/ns/net";
const NSFS_MAGIC: i64 = 0x6e73_6673; // linux/magic.h
const ENOTDIR: i32 = 20;
const PROC_MAGIC: i64 = 0x9fa0; // linux/magic.h: namespace files on old kernels

/// An open network namespace. It exists at least as long as this value.
#[derive(Debug)]
pub struct Netns {
    file: File,
    path: PathBuf,
}

/// The identity of a namespace: two files with the same identity are the same namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Netns {
    /// Opens the namespace behind a file such as `/var/run/netns/blue` or `/proc/123/ns/net`.
    pub fn open(path: impl Into<PathBuf>) -> Result<Netns> {
        let path = path.into();
        let open = || -> io::Result<File> {
            let file = File::open(&path)?;
            match sys::file_system_type(file.as_fd())? {
                NSFS_MAGIC | PROC_MAGIC => Ok(file),
                _ => Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "unknown FS magic: not a network namespace",
                )),
            }
        };
        match open() {
            Ok(file) => Ok(Netns { file, path }),
            Err(source) => Err(Error::Netns { path, source }),
        }
    }

    /// Opens a namespace that may be gone: `None` if the file is missing or not a namespace (unmounting leaves an empty
    /// file).
    pub fn find(path: impl Into<PathBuf>) -> Result<Option<Netns>> {
        match Netns::open(path) {
            Ok(netns) => Ok(Some(netns)),
            Err(Error::Netns { source, .. })
                if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput)
                    || source.raw_os_error() == Some(ENOTDIR) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The namespace of the calling thread.
    pub fn current() -> Result<Netns> {
        match sys::current_network_namespace() {
            Ok(fd) => Ok(Netns { file: fd.into(), path: OWN.into() }),
            Err(_) => Netns::open(OWN),
        }
    }

    /// Creates a namespace and keeps it alive by a bind mount on `path`, which must not exist.
    pub fn create(path: impl Into<PathBuf>) -> Result<Netns> {
        let path = path.into();
        let create = || -> io::Result<()> {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            File::create_new(&path)?;
            // A separate thread creates the namespace and ends, so that no other thread is ever in it.
            let created = std::thread::scope(|scope| {
                let bind =
                    || sys::new_network_namespace().and_then(|()| sys::bind_mount(Path::new(OWN), &path));
                scope.spawn(bind).join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
            });
            created.inspect_err(|_| drop(std::fs::remove_file(&path)))
        };
        create().map_err(|source| Error::Netns { path: path.clone(), source })?;
        Netns::open(path)
    }

    /// Reverts [`create`](Self::create). The namespace ends with its last user.
    pub fn remove(path: &Path) -> Result<()> {
        let failed = |source| Error::Netns { path: path.to_owned(), source };
        match sys::unmount(path) {
            Err(error) if !matches!(error.raw_os_error(), Some(2 | 22)) => return Err(failed(error)),
            _ => {}
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        }
    }

    /// The file that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The identity.
    pub fn identity(&self) -> Result<Identity> {
        let found =
            self.file.metadata().map_err(|source| Error::Netns { path: self.path.clone(), source })?;
        Ok(Identity { device: found.dev(), inode: found.ino() })
    }

    /// The cookie: unique until the next boot, unlike the inode number, which is reused. `None` before Linux 5.14.
    pub fn cookie(&self) -> Result<Option<u64>> {
        let read =
            || UnixDatagram::unbound().and_then(|socket| sys::network_namespace_cookie(socket.as_fd()));
        self.run(read)?.map_err(|source| Error::Netns { path: self.path.clone(), source })
    }

    /// Whether it is the namespace of the calling thread.
    pub fn is_current(&self) -> Result<bool> {
        Ok(self.identity()? == Netns::current()?.identity()?)
    }

    /// Opens a pod's namespace if it still has this cookie. After PID reuse, a path such as `/proc/123/ns/net` leads to
    /// another namespace. Without a cookie, only the node's own namespace is recognized as wrong.
    pub fn find_again(path: impl Into<PathBuf>, cookie: Option<u64>) -> Result<Option<Netns>> {
        let Some(found) = Netns::find(path)? else { return Ok(None) };
        let is_it = match cookie {
            None => !found.is_current()?,
            Some(_) => found.cookie()? == cookie,
        };
        Ok(is_it.then_some(found))
    }

    /// Calls `work` with the calling thread inside this namespace.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let previous = Netns::current()?;
        sys::enter_network_namespace(self.as_fd())
            .map_err(|source| Error::Netns { path: self.path.clone(), source })?;
        let _guard = Guard { previous, not_send: PhantomData };
        Ok(work())
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Returns to the previous namespace when dropped. It is not `Send`, so no other thread can drop it.
struct Guard {
    previous: Netns,
    not_send: PhantomData<*mut ()>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.not_send;
        if let Err(error) = sys::enter_network_namespace(self.previous.as_fd()) {
            // Continuing here would apply the node's changes to the pod.
            eprintln!("podwire: cannot return to the previous network namespace: {error}");
            std::process::abort();
        }
    }
}

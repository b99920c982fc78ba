//! A wake-up that `poll` can wait for together with sockets: a pipe.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use podwire_netlink::sys;

/// Wakes a reconciler's thread. Wake-ups that arrive before the thread reacts count as one.
#[derive(Clone, Debug)]
pub struct Waker(Arc<File>);

impl Waker {
    /// Makes the thread reconcile now.
    pub fn wake(&self) {
        // A full pipe wakes the thread too, and a thread that has ended needs no wake-up.
        let _ = (&*self.0).write(b"!");
    }
}

/// The end that the thread polls. It is also readable when all wakers are dropped.
pub(crate) struct Wakeups(File);

impl Wakeups {
    /// Takes the wake-ups that arrived. A message is sent before its wake-up, so none is missed.
    pub(crate) fn clear(&mut self) {
        let _ = self.0.read(&mut [0; 256]);
    }
}

impl AsFd for Wakeups {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub(crate) fn pair() -> io::Result<(Waker, Wakeups)> {
    let (read, write) = sys::pipe()?;
    sys::never_block(write.as_fd())?;
    Ok((Waker(Arc::new(write.into())), Wakeups(read.into())))
}

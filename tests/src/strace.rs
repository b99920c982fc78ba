//! Watching a program's system calls, and killing it on entering one of them.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Invocation, Node, Output};

/// Calls that change something that outlives the process, or hold a lock during a change.
const CALLS: &str = "sendto,sendmsg,openat,open,write,pwrite64,writev,mkdir,mkdirat,rename,renameat,renameat2,unlink,\
unlinkat,rmdir,link,linkat,symlink,symlinkat,utimensat,ftruncate,fallocate,fchmod,chmod,mount,umount2,ioctl,socket,\
setsockopt,setns,unshare,flock,fork,vfork,clone";

/// The `nth` call of this name that a program makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The system call.
    pub call: String,
    /// Counted from 1 among calls of the same name.
    pub nth: usize,
    /// The whole line, for messages.
    pub line: String,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line: String = self.line.chars().take(160).collect();
        write!(f, "{} number {}: {line}", self.call, self.nth)
    }
}

/// Something that can be run behind a wrapper.
pub trait Traced {
    /// Runs it as the command of this wrapper.
    fn behind(&self, wrapper: &[&str]) -> Output;
}

impl Traced for Invocation<'_> {
    fn behind(&self, wrapper: &[&str]) -> Output {
        self.run_behind(wrapper)
    }
}

/// The operations of one run that changed something or were about to. Panics if strace does not work here.
pub fn operations(node: &Node, traced: &dyn Traced) -> (Vec<Operation>, Output) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let file = format!("/run/test/strace.{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let output = traced.behind(&["strace", "-qq", "-o", &file, "-e", &format!("trace={}", known(node))]);
    let printed = node.sh(&format!("cat {file} && rm {file}"));
    let mut counts: HashMap<String, usize> = HashMap::new();
    let mut all = Vec::new();
    for line in printed.lines() {
        let Some((call, _)) = line.split_once('(') else { continue };
        let nth = counts.entry(call.into()).or_default();
        *nth += 1;
        if changes_something(call, line) {
            all.push(Operation { call: call.into(), nth: *nth, line: line.into() });
        }
    }
    assert!(!all.is_empty(), "strace saw nothing, it does not work here: {}{}", output.stdout, output.stderr);
    (all, output)
}

/// Opening a file to read it leaves nothing.
fn changes_something(call: &str, line: &str) -> bool {
    !call.starts_with("open")
        || ["O_CREAT", "O_WRONLY", "O_RDWR", "O_TRUNC"].iter().any(|flag| line.contains(flag))
}

/// Runs it until it enters `operation`, where it dies by SIGKILL. Returns whether it got that far, and its output.
pub fn killed_at(traced: &dyn Traced, operation: &Operation) -> (bool, Output) {
    let inject = format!("inject={}:signal=KILL:when={}", operation.call, operation.nth);
    let trace = format!("trace={}", operation.call);
    let output = traced.behind(&["strace", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject]);
    (output.status == -9, output)
}

/// Runs it; the operation fails once, as it does on a machine without resources.
pub fn failed_at(traced: &dyn Traced, operation: &Operation) -> Output {
    let errno = match operation.call.as_str() {
        "sendto" | "sendmsg" => "ENOBUFS",
        "socket" => "EMFILE",
        "setns" | "unshare" | "mount" | "umount2" => "EPERM",
        "flock" => "ENOLCK",
        "fork" | "vfork" | "clone" => "EAGAIN",
        _ => "ENOSPC",
    };
    let inject = format!("inject={}:error={errno}:when={}", operation.call, operation.nth);
    traced.behind(&[
        "strace",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        &format!("trace={}", operation.call),
        "-e",
        &inject,
    ])
}

/// As [`killed_at`], but also for its children.
pub fn killed_child_at(traced: &dyn Traced, call: &str, nth: usize) -> Output {
    let inject = format!("inject={call}:signal=KILL:when={nth}");
    traced.behind(&["strace", "-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e", &inject])
}

/// The calls that this machine's strace knows.
fn known(node: &Node) -> String {
    let knows = |call: &&str| node.can(&format!("strace -qq -o /dev/null -e trace={call} true"));
    static KNOWN: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let find = || {
        assert!(
            node.can("strace -qq -o /dev/null true"),
            "strace is needed, and allowed to trace: `apt-get install strace`"
        );
        CALLS.split(',').filter(knows).collect::<Vec<_>>().join(",")
    };
    KNOWN.get_or_init(find).clone()
}

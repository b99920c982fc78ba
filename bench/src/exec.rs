//! Runs one program and measures its time.

use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use podwire_netlink::sys;
use std::os::fd::AsFd;

/// A program that takes longer is killed.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The capacity of a pipe: a writer does not block before it has written this much.
const PIPE: usize = 65_536;

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    /// Microseconds from before it was started to after it was waited for.
    pub micros: f64,
    /// What it printed.
    pub output: Vec<u8>,
    /// How it failed, with its output.
    pub fault: Option<String>,
}

/// Runs `command` with `input` on its standard input. Pipes are filled before the clock starts and emptied
/// after it stopped, so that only the program itself is timed.
pub fn timed(mut command: Command, input: &[u8]) -> Result<Ended> {
    anyhow::ensure!(input.len() <= PIPE, "a config of {} bytes", input.len());
    let program = command.get_program().to_string_lossy().into_owned();
    let (stdin, mut writer) = io::pipe()?;
    writer.write_all(input)?;
    drop(writer);
    let (mut output, stdout) = io::pipe()?;
    let (mut errors, stderr) = io::pipe()?;
    command.stdin(stdin).stdout(stdout).stderr(stderr);

    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("start {program}"))?;
    let ended = sys::open_pidfd(child.id())?;
    let in_time = sys::readable(&[ended.as_fd()], TIMEOUT)?[0];
    if !in_time {
        child.kill()?;
    }
    let status = child.wait()?;
    let micros = start.elapsed().as_secs_f64() * 1e6;

    // The command holds the pipes' write ends: reading ends when they are closed.
    drop(command);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    output.read_to_end(&mut out)?;
    errors.read_to_end(&mut err)?;
    let fault = (!status.success()).then(|| {
        let reason = if in_time { status.to_string() } else { format!("killed after {TIMEOUT:?}") };
        let text = [&out[..], &err[..]].concat();
        format!("{program}: {reason}: {}", String::from_utf8_lossy(&text).trim())
    });
    Ok(Ended { micros, output: out, fault })
}

/// A command whose environment is only a PATH. The Go plugins execute iptables.
pub fn clean(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
    command
}

//! The pause process, which holds a pod's namespaces. Lab nodes have one too.
//!
//! It is `podwire-cni` beside this program, or else this program, executed ([`main`]) as the first process of new namespaces.
//! `podwire` is position independent, and its relocations would cost each pod about 1 MiB of private memory; `podwire-cni` has none. It reads its setup from standard input
//! ([`SetupStep`]): mounts, host name, sysctls, loopback. Then it prints `ready` and waits for the line `live`. If its parent
//! dies before, the input ends and so does the process. Afterwards it has no open descriptor and waits for SIGTERM. The kernel
//! reaps the pod's orphans, and ends all other processes of the pod when this process ends.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use podwire_kernel::rt::link;
use podwire_kernel::Host;
use podwire_netlink::sys::{self, IsolatedProcess};

use crate::{Error, PodName, Process, Result};

/// How long the setup may take: usually a millisecond, seconds on an overloaded node.
const SETUP_TIMEOUT: Duration = Duration::from_secs(30);
const END: &str = "end";
const LIVE: &str = "live";
const READY: &str = "ready";

/// A pause process that waits for its release; it ends when this is dropped.
#[derive(Debug)]
pub struct PauseProcess {
    name: PodName,
    /// The process itself.
    pub process: Process,
    setup: File,
    report: File,
}

impl PauseProcess {
    /// Starts one, with its own network namespace or with the node's.
    pub fn start(name: &PodName, own_network: bool) -> Result<PauseProcess> {
        let start = || -> io::Result<PauseProcess> {
            let ((stdin, setup), (report, stdout)) = (sys::pipe()?, sys::pipe()?);
            let called = name.to_string();
            let args = ["podwire", "pause", &called];
            let program = program();
            let pid = sys::spawn_in_new_namespaces(&IsolatedProcess {
                program: &program,
                args: &args,
                new_network: own_network,
                stdin: stdin.as_fd(),
                stdout: stdout.as_fd(),
            })?;
            let process = Process::of(pid)?;
            Ok(PauseProcess { name: name.clone(), process, setup: setup.into(), report: report.into() })
        };
        start().map_err(|error| Error::Pause { name: name.clone(), reason: error.to_string() })
    }

    /// Sends the setup steps, encoded.
    pub fn configure(&mut self, steps: &[String]) -> Result<()> {
        self.send(
            &steps.iter().map(|step| format!("{step}\n")).chain([format!("{END}\n")]).collect::<String>(),
        )
    }

    /// Lets the process outlive this one, and waits until its setup is done.
    pub fn release(mut self) -> Result<()> {
        self.send(&format!("{LIVE}\n"))?;
        let failed = |reason: String| Error::Pause { name: self.name.clone(), reason };
        let mut text = String::new();
        if !sys::readable(&[self.report.as_fd()], SETUP_TIMEOUT).is_ok_and(|ready| ready == [true]) {
            return Err(failed(format!("no answer within {} s", SETUP_TIMEOUT.as_secs())));
        }
        let read = self.report.read_to_string(&mut text);
        match (read, text.trim()) {
            (Ok(_), READY) => Ok(()),
            (Ok(_), "") => Err(failed("it ended without a message".into())),
            (Ok(_), reason) => Err(failed(reason.into())),
            (Err(error), _) => Err(failed(error.to_string())),
        }
    }

    fn send(&mut self, text: &str) -> Result<()> {
        let sent = self.setup.write_all(text.as_bytes());
        // If the process has died, its report says why.
        match sent {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(Error::Pause { name: self.name.clone(), reason: error.to_string() })
            }
            _ => Ok(()),
        }
    }
}

/// A step of the setup inside the namespaces.
#[derive(Debug)]
pub enum SetupStep<'a> {
    /// Mounts `/proc`, and `/sys` with its own network namespace.
    MountProcAndSys {
        /// Whether it has its own network namespace.
        own_network: bool,
    },
    /// Bind-mounts a file or directory, if the target exists.
    BindMount {
        /// The target.
        target: &'a Path,
        /// The source.
        source: &'a Path,
    },
    /// Sets the host name.
    HostName(&'a str),
    /// Sets a sysctl.
    Sysctl {
        /// The path below /proc/sys.
        path: &'a str,
        /// The value.
        value: &'a str,
    },
    /// Sets the loopback up.
    Loopback,
    /// Creates a directory and its parents.
    CreateDir(&'a Path),
    /// Mounts an empty tmpfs at this directory.
    Tmpfs(&'a Path),
    /// Mounts a tmpfs at this directory with links to its former entries except one name, which can then be created without
    /// changing the node.
    Mirror {
        /// The directory.
        dir: &'a Path,
        /// The name to leave out.
        except: &'a str,
    },
}

impl SetupStep<'_> {
    /// Encodes it as one line.
    pub fn encode(&self) -> String {
        match self {
            SetupStep::MountProcAndSys { own_network } => format!("mount\t{own_network}"),
            SetupStep::BindMount { target, source } => {
                format!("bind\t{}\t{}", target.display(), source.display())
            }
            SetupStep::HostName(name) => format!("hostname\t{name}"),
            SetupStep::Sysctl { path, value } => format!("sysctl\t{path}\t{value}"),
            SetupStep::Loopback => "loopback".into(),
            SetupStep::CreateDir(path) => format!("mkdir\t{}", path.display()),
            SetupStep::Tmpfs(path) => format!("tmpfs\t{}", path.display()),
            SetupStep::Mirror { dir, except } => format!("mirror\t{}\t{except}", dir.display()),
        }
    }
}

/// The program of the pause process.
fn program() -> PathBuf {
    let beside = std::env::current_exe().map(|own| own.with_file_name("podwire-cni"));
    beside.ok().filter(|path| path.is_file()).unwrap_or_else(|| "/proc/self/exe".into())
}

/// `podwire pause`: the pause process.
pub fn main() -> ExitCode {
    // As another process than PID 1 it would change the node.
    if std::process::id() != 1 {
        eprintln!("podwire: `podwire pause` runs in pods only");
        return ExitCode::from(2);
    }
    let mut setup = BufReader::with_capacity(4096, io::stdin().lock());
    let done = set_up(&mut setup);
    // The parent waits for the end of the report, so no other process may keep it open.
    let reported = match &done {
        Ok(()) => io::stdout().write_all(READY.as_bytes()),
        Err(reason) => io::stdout().write_all(reason.as_bytes()),
    };
    let _ = io::stdout().flush();
    let mut line = String::new();
    let is_released =
        done.is_ok() && reported.is_ok() && setup.read_line(&mut line).is_ok() && line.trim() == LIVE;
    if is_released && sys::wait_for_termination().is_ok() {
        return ExitCode::SUCCESS;
    }
    ExitCode::FAILURE
}

fn set_up(steps: &mut impl BufRead) -> Result<(), String> {
    let _ = std::fs::write("/proc/self/comm", "podwire-pause");
    sys::make_mounts_slave().map_err(|error| format!("separate the mounts from the node's: {error}"))?;
    for line in steps.lines().map_while(io::Result::ok) {
        if line == END {
            return Ok(());
        }
        run_step(&line)?;
    }
    Err("the setup is incomplete".into())
}

fn run_step(line: &str) -> Result<(), String> {
    let mut words = line.splitn(3, '\t');
    let (step, first, second) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    match step {
        "mount" => {
            let mount = |kind: &str, target: &str| {
                sys::mount_virtual(kind, Path::new(target))
                    .map_err(|error| format!("mount {target}: {error}"))
            };
            mount("proc", "/proc")?;
            if first == "true" {
                mount("sysfs", "/sys")
            } else {
                Ok(())
            }
        }
        "bind" => match sys::bind_mount(Path::new(second), Path::new(first)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !Path::new(first).exists() => Ok(()),
            other => other.map_err(|error| format!("mount {second} at {first}: {error}")),
        },
        "hostname" => sys::set_host_name(first).map_err(|error| format!("set host name {first:?}: {error}")),
        "sysctl" => podwire_kernel::sysctl::write(first, second).map_err(|error| error.to_string()),
        "mkdir" => std::fs::create_dir_all(first).map_err(|error| format!("create {first}: {error}")),
        "tmpfs" => sys::mount_tmpfs(Path::new(first)).map_err(|error| format!("mount {first}: {error}")),
        "mirror" => mirror(Path::new(first), second).map_err(|error| format!("mirror {first}: {error}")),
        "loopback" => set_loopback_up().map_err(|error| error.to_string()),
        other => Err(format!("unknown setup step {other:?}")),
    }
}

/// The former content of a mirrored directory is mounted below here; the links point to it.
const ORIGINALS: &str = "/var/lib/podwire/machine";

fn mirror(dir: &Path, except: &str) -> io::Result<()> {
    let original = Path::new(ORIGINALS).join(dir.strip_prefix("/").unwrap_or(dir));
    std::fs::create_dir_all(&original)?;
    sys::bind_mount(dir, &original)?;
    sys::mount_tmpfs(dir)?;
    for entry in std::fs::read_dir(&original)?.flatten().filter(|entry| entry.file_name() != except) {
        // A symbolic link is copied, not followed: its target may be relative.
        let source = original.join(entry.file_name());
        let target = std::fs::read_link(&source).unwrap_or(source);
        std::os::unix::fs::symlink(target, dir.join(entry.file_name()))?;
    }
    Ok(())
}

/// Sets the loopback up; the kernel then adds 127.0.0.1/8 and ::1/128.
fn set_loopback_up() -> podwire_kernel::Result<()> {
    let mut host = Host::here()?;
    let lo = host.get_link("lo")?;
    Ok(host.route.request(link::up(&lo))?)
}

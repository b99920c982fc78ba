//! The process that is in a pod from its beginning to its end, and holds its namespaces.
//!
//! It is this program, started anew ([`main`]) as the first process of new namespaces. It is told over its standard input
//! what to do there ([`Order`]): mounts, the host's name, knobs, the loopback. A lab's node is held by such a process, too. Then it says `ready` and waits for the word `live`; if
//! whoever started it dies before, the input ends and so does the process. Once it lives it has no descriptor and waits for
//! SIGTERM; the kernel reaps the pod's orphans, and ends whatever else is in the pod when this process ends.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use podwire_kernel::rt::link;
use podwire_kernel::Host;
use podwire_netlink::sys::{self, IsolatedProcess};

use crate::{Error, PodName, Process, Result};

/// It takes a millisecond; on a node that is busy beyond measure, seconds.
const PATIENCE: Duration = Duration::from_secs(30);
const END: &str = "end";
const LIVE: &str = "live";
const READY: &str = "ready";

/// A pod's process that does not live yet: it ends when this is dropped.
#[derive(Debug)]
pub struct Newborn {
    name: PodName,
    /// The process itself.
    pub process: Process,
    orders: File,
    report: File,
}

impl Newborn {
    /// Starts one, with a network of its own or with the node's.
    pub fn start(name: &PodName, own_network: bool) -> Result<Newborn> {
        let start = || -> io::Result<Newborn> {
            let ((stdin, orders), (report, stdout)) = (sys::pipe()?, sys::pipe()?);
            let called = name.to_string();
            let args = ["podwire", "pause", &called];
            let pid = sys::spawn_in_new_namespaces(&IsolatedProcess {
                args: &args,
                new_network: own_network,
                stdin: stdin.as_fd(),
                stdout: stdout.as_fd(),
            })?;
            let process = Process::of(pid)?;
            Ok(Newborn { name: name.clone(), process, orders: orders.into(), report: report.into() })
        };
        start().map_err(|error| Error::Pause { name: name.clone(), why: error.to_string() })
    }

    /// Says what is to be done in the pod.
    pub fn tell(&mut self, orders: &[String]) -> Result<()> {
        self.say(
            &orders.iter().map(|order| format!("{order}\n")).chain([format!("{END}\n")]).collect::<String>(),
        )
    }

    /// It shall live from now on, whatever happens to us, if it can do what it was told.
    pub fn live(mut self) -> Result<()> {
        self.say(&format!("{LIVE}\n"))?;
        let failed = |why: String| Error::Pause { name: self.name.clone(), why };
        let mut words = String::new();
        if !sys::readable(&[self.report.as_fd()], PATIENCE).is_ok_and(|ready| ready == [true]) {
            return Err(failed(format!("no answer within {} s", PATIENCE.as_secs())));
        }
        let read = self.report.read_to_string(&mut words);
        match (read, words.trim()) {
            (Ok(_), READY) => Ok(()),
            (Ok(_), "") => Err(failed("it ended without a word".into())),
            (Ok(_), why) => Err(failed(why.into())),
            (Err(error), _) => Err(failed(error.to_string())),
        }
    }

    fn say(&mut self, words: &str) -> Result<()> {
        let said = self.orders.write_all(words.as_bytes());
        // If it died of an earlier word its report tells why.
        match said {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(Error::Pause { name: self.name.clone(), why: error.to_string() })
            }
            _ => Ok(()),
        }
    }
}

/// What is to be done in a pod.
#[derive(Debug)]
pub enum Order<'a> {
    /// Files of processes and of links as the pod has them.
    ShowItself {
        /// Whether it has a network of its own.
        own_network: bool,
    },
    /// The pod sees this file in place of the node's, if the node has one.
    Cover {
        /// The node's.
        file: &'a Path,
        /// What is seen there.
        with: &'a Path,
    },
    /// The name of the host.
    HostName(&'a str),
    /// A value under /proc/sys.
    Knob {
        /// Below /proc/sys.
        path: &'a str,
        /// What is written there.
        value: &'a str,
    },
    /// The loopback comes up.
    Loopback,
    /// A folder, with those above it.
    Folder(&'a Path),
    /// An empty folder in memory is seen in the place of this one.
    Memory(&'a Path),
    /// A folder in memory is seen in the place of this one, with links to all that was in it but for one name, which can
    /// then be made anew without the node's being touched.
    Mirror {
        /// The folder.
        folder: &'a Path,
        /// The name.
        but: &'a str,
    },
}

impl Order<'_> {
    /// As a line.
    pub fn line(&self) -> String {
        match self {
            Order::ShowItself { own_network } => format!("show\t{own_network}"),
            Order::Cover { file, with } => format!("cover\t{}\t{}", file.display(), with.display()),
            Order::HostName(name) => format!("hostname\t{name}"),
            Order::Knob { path, value } => format!("knob\t{path}\t{value}"),
            Order::Loopback => "loopback".into(),
            Order::Folder(path) => format!("folder\t{}", path.display()),
            Order::Memory(path) => format!("memory\t{}", path.display()),
            Order::Mirror { folder, but } => format!("mirror\t{}\t{but}", folder.display()),
        }
    }
}

/// `podwire pause`: the process itself.
pub fn main() -> ExitCode {
    // Done by hand it would be done to the node.
    if std::process::id() != 1 {
        eprintln!("podwire: `podwire pause` is what runs in a pod: there is nothing to do by hand");
        return ExitCode::from(2);
    }
    let mut orders = BufReader::with_capacity(4096, io::stdin().lock());
    let done = obey(&mut orders);
    // Nobody else may keep the report open: its end is waited for.
    let told = match &done {
        Ok(()) => io::stdout().write_all(READY.as_bytes()),
        Err(why) => io::stdout().write_all(why.as_bytes()),
    };
    let _ = io::stdout().flush();
    let mut word = String::new();
    let may_live = done.is_ok() && told.is_ok() && orders.read_line(&mut word).is_ok() && word.trim() == LIVE;
    match may_live && sys::wait_for_termination().is_ok() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn obey(orders: &mut impl BufRead) -> Result<(), String> {
    let _ = std::fs::write("/proc/self/comm", "podwire-pause");
    sys::make_mounts_slave().map_err(|error| format!("part from the node's mounts: {error}"))?;
    for line in orders.lines().map_while(io::Result::ok) {
        if line == END {
            return Ok(());
        }
        carry_out(&line)?;
    }
    Err("nobody says what to do".into())
}

fn carry_out(line: &str) -> Result<(), String> {
    let mut words = line.splitn(3, '\t');
    let (order, first, second) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    match order {
        "show" => {
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
        "cover" => match sys::bind_mount(Path::new(second), Path::new(first)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !Path::new(first).exists() => Ok(()),
            other => other.map_err(|error| format!("show {second} as {first}: {error}")),
        },
        "hostname" => sys::set_host_name(first).map_err(|error| format!("set host name {first:?}: {error}")),
        "knob" => podwire_kernel::sysctl::write(first, second).map_err(|error| error.to_string()),
        "folder" => std::fs::create_dir_all(first).map_err(|error| format!("make folder {first}: {error}")),
        "memory" => sys::mount_tmpfs(Path::new(first)).map_err(|error| format!("mount {first}: {error}")),
        "mirror" => mirror(Path::new(first), second).map_err(|error| format!("mirror {first}: {error}")),
        "loopback" => raise_loopback().map_err(|error| error.to_string()),
        other => Err(format!("unknown order {other:?}")),
    }
}

/// What was in the folder is below here from then on; the links lead there.
const BEHIND: &str = "/var/lib/podwire/machine";

fn mirror(folder: &Path, but: &str) -> io::Result<()> {
    let behind = Path::new(BEHIND).join(folder.strip_prefix("/").unwrap_or(folder));
    std::fs::create_dir_all(&behind)?;
    sys::bind_mount(folder, &behind)?;
    sys::mount_tmpfs(folder)?;
    for entry in std::fs::read_dir(&behind)?.flatten().filter(|entry| entry.file_name() != but) {
        // A link leads from where it stands: it is copied, not followed.
        let there = behind.join(entry.file_name());
        let leads = std::fs::read_link(&there).unwrap_or(there);
        std::os::unix::fs::symlink(leads, folder.join(entry.file_name()))?;
    }
    Ok(())
}

/// The kernel then gives it 127.0.0.1/8 and ::1/128.
fn raise_loopback() -> podwire_kernel::Result<()> {
    let mut host = Host::here()?;
    let lo = host.get_link("lo")?;
    Ok(host.route.request(link::up(&lo))?)
}

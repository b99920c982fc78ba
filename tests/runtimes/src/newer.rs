//! Programs that are newer than Debian 12's: Debian unstable's, unpacked once into a cache directory and never installed.
//!
//! - containerd 2 sends STATUS to plugins.
//! - nft reads rules in other ways than older versions.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const UNPACK: &str = include_str!("newer.sh");
/// nft with all its libraries: those of Debian 12 are too old for it.
const NFT: [&str; 12] = [
    "nftables",
    "libnftables1",
    "libnftnl11",
    "libjansson4",
    "libmnl0",
    "libc6",
    "libgmp10",
    "libedit2",
    "libtinfo6",
    "libbsd0",
    "libmd0",
    "libxtables12",
];

/// The directory with containerd's programs. None, with a message, where it cannot be downloaded.
pub fn newer_containerd() -> Option<&'static str> {
    static FOUND: OnceLock<Option<String>> = OnceLock::new();
    FOUND.get_or_init(|| found("a newer containerd", containerd())).as_deref()
}

/// The command that runs nft with its own libraries. None, with a message, where it cannot be downloaded.
pub fn newer_nft() -> Option<&'static str> {
    static FOUND: OnceLock<Option<String>> = OnceLock::new();
    FOUND.get_or_init(|| found("a newer nft", nft())).as_deref()
}

fn found(what: &str, result: Result<String, String>) -> Option<String> {
    // Not println: the test runner captures it.
    let say = |why: &String| drop(writeln!(std::io::stderr(), "left out: {what} ({why})"));
    result.inspect_err(say).ok()
}

fn containerd() -> Result<String, String> {
    let programs = unpack("containerd-sid", &["containerd"])?.join("usr/bin").display().to_string();
    // It must run on this older Debian, and the tests expect this series.
    let version = run(Command::new(format!("{programs}/containerd")).arg("--version"))?;
    version.contains(" 2.").then_some(programs).ok_or(format!("it is not of version 2: {version}"))
}

fn nft() -> Result<String, String> {
    let tree = unpack("nft-sid", &NFT)?;
    let libraries = tree.join("usr/lib");
    let loader = run(Command::new("find").arg(&libraries).args(["-name", "ld-linux-*.so.*"]))?;
    let loader = loader.lines().next().ok_or("there is no loader of programs")?.to_owned();
    let folder = Path::new(&loader).parent().unwrap_or(&libraries).display();
    let command = format!("{loader} --library-path {folder} {}", tree.join("usr/sbin/nft").display());
    run(Command::new("sh").args(["-c", &format!("{command} --version")])).map(|_| command)
}

/// Unpacks packages into a directory of the cache, unless they are there.
fn unpack(name: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let cache = match (std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")) {
        (Some(cache), _) => PathBuf::from(cache),
        (None, Some(home)) => PathBuf::from(home).join(".cache"),
        (None, None) => return Err("neither HOME nor XDG_CACHE_HOME is set".into()),
    };
    let folder = cache.join("podwire").join(name);
    if !folder.join("usr").exists() {
        run(Command::new("sh").args(["-c", UNPACK, "sh"]).arg(&folder).args(packages))?;
    }
    Ok(folder)
}

/// What a program printed, or the last line of its errors.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let words = String::from_utf8_lossy(&output.stderr).trim().lines().last().unwrap_or("").to_owned();
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned()).ok_or(words)
}

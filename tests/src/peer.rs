//! Peers in Go that Debian has no package of: built once, from the Go module proxy, into a cache folder.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The last release of the reference plugins that had flannel in it. Its files are those of today's.
const PLUGINS: &str = "github.com/containernetworking/plugins";
const VERSION: &str = "v0.9.1";

/// The folder with the Go plugin `flannel` in it. None, and said so, where there is no Go or no network.
pub fn go_flannel() -> Option<&'static str> {
    static BUILT: OnceLock<Option<String>> = OnceLock::new();
    let build = || match build("flannel", "plugins/meta/flannel") {
        Ok(folder) => Some(folder),
        Err(why) => {
            // Not by println: the test runner would keep it to itself.
            drop(writeln!(std::io::stderr(), "left out: the Go plugin flannel {VERSION} ({why})"));
            None
        }
    };
    BUILT.get_or_init(build).as_deref()
}

fn build(name: &str, package: &str) -> Result<String, String> {
    let cache = match (std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")) {
        (Some(cache), _) => PathBuf::from(cache),
        (None, Some(home)) => PathBuf::from(home).join(".cache"),
        (None, None) => return Err("neither HOME nor XDG_CACHE_HOME is set".into()),
    };
    let folder = cache.join(format!("podwire/go-plugins-{VERSION}"));
    let (told, built) = (folder.display().to_string(), folder.join(name));
    if built.exists() {
        return Ok(told);
    }
    // A module of its own for each try, so that two tests may build at the same time.
    let module = folder.join(format!("module-{}", std::process::id()));
    let make = || -> Result<(), String> {
        std::fs::create_dir_all(&module).map_err(|error| error.to_string())?;
        std::fs::write(module.join("go.mod"), "module peer\n\ngo 1.21\n")
            .map_err(|error| error.to_string())?;
        let go = |words: &[&str]| {
            let output = Command::new("go").args(words).current_dir(&module).output();
            let output = output.map_err(|error| format!("go: {error}"))?;
            let last =
                String::from_utf8_lossy(&output.stderr).trim().lines().last().unwrap_or("").to_string();
            output.status.success().then_some(()).ok_or(format!("go {}: {last}", words[0]))
        };
        go(&["get", &format!("{PLUGINS}/{package}@{VERSION}")])?;
        go(&["build", "-o", "built", &format!("{PLUGINS}/{package}")])?;
        std::fs::rename(module.join("built"), &built).map_err(|error| error.to_string())
    };
    let made = make();
    let _ = std::fs::remove_dir_all(&module);
    made.map(|()| told)
}

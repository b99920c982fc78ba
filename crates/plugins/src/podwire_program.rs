//! The program `podwire`, which does what plugins do not: it serves the DHCP daemon and accesses datastores.

use std::path::{Path, PathBuf};

/// Its file name.
pub(crate) const PROGRAM: &str = "podwire";

/// Looks for it beside this program, in the folders of plugins, in PATH, and in the usual folders.
pub(crate) fn find(plugins: &[PathBuf]) -> Option<PathBuf> {
    let own = std::env::current_exe().unwrap_or_default();
    let own = own.ancestors().skip(1).take(2).map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/bin", "/usr/bin"].map(PathBuf::from);
    let folders = own.chain(plugins.iter().cloned()).chain(std::env::split_paths(&path)).chain(usual);
    folders.map(|folder| folder.join(PROGRAM)).find(|program| program.is_file())
}

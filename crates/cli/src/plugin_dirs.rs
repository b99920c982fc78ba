//! The directories of plugins, where the command line names none.

use std::path::{Path, PathBuf};

/// Where distributions and vendors install plugins.
const USUAL: [&str; 3] = ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"];

/// `cni` beside this program, as `make build` leaves it in `dist`, then the usual directories.
pub(crate) fn default() -> Vec<PathBuf> {
    of(std::env::current_exe().ok().as_deref())
}

fn of(program: Option<&Path>) -> Vec<PathBuf> {
    let beside = program.map(|program| program.with_file_name("cni")).filter(|dir| dir.is_dir());
    beside.into_iter().chain(USUAL.map(PathBuf::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_beside_the_program_comes_first() {
        let dir = std::env::temp_dir().join(format!("podwire-plugin-dirs-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("cni")).unwrap();
        let with = of(Some(&dir.join("podwire")));
        std::fs::remove_dir_all(&dir).unwrap();
        let usual = USUAL.map(PathBuf::from).to_vec();
        assert_eq!(with, [vec![dir.join("cni")], usual.clone()].concat());
        assert_eq!(of(Some(&dir.join("podwire"))), usual);
        assert_eq!(of(None), usual);
    }
}

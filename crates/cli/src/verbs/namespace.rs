//! Network namespaces by name or path, and the container ids that stand for them.

use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha512};

/// Where `ip netns` keeps its namespaces.
const FOLDERS: [&str; 2] = ["/run/netns", "/var/run/netns"];

/// The path of a namespace that was given as a path or as a bare name.
pub(crate) fn path(text: &str) -> PathBuf {
    if text.contains('/') {
        return absolute(Path::new(text));
    }
    let candidates = FOLDERS.map(|folder| Path::new(folder).join(text));
    candidates.iter().find(|path| path.exists()).unwrap_or(&candidates[0]).clone()
}

/// The path from the root, without `.` and `..`.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    whole.components().fold(PathBuf::new(), |mut clean, component| {
        match component {
            Component::ParentDir => drop(clean.pop()),
            Component::CurDir => {}
            other => clean.push(other),
        }
        clean
    })
}

/// The container id that cnitool makes of a namespace: the same one every time.
pub(crate) fn container_id(netns: &Path) -> String {
    let hash = Sha512::digest(absolute(netns).to_string_lossy().as_bytes());
    let hex: String = hash.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    format!("cnitool-{hex}")
}

/// Whether two paths lead to the same file, which may be gone: `/var/run` mostly is `/run`.
pub(crate) fn same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| {
        let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
        folder.zip(path.file_name()).map(|(folder, name)| folder.join(name))
    };
    one == other || real(one).is_some_and(|real_one| Some(real_one) == real(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_become_paths() {
        assert_eq!(path("/proc/1/ns/../ns/net"), Path::new("/proc/1/ns/net"));
        assert_eq!(path("no-such-namespace"), Path::new("/run/netns/no-such-namespace"));
    }

    #[test]
    fn a_namespace_has_the_container_id_that_cnitool_gives_it() {
        // printf %s /var/run/netns/testing | sha512sum | cut -c 1-20
        assert_eq!(container_id(Path::new("/var/run/netns/testing")), "cnitool-77383ca0a0715733ca6f");
        assert_eq!(container_id(Path::new("/var/run/../run/netns/testing")), "cnitool-77383ca0a0715733ca6f");
    }

    #[test]
    fn the_same_folder_under_two_names_is_the_same() {
        assert!(same(
            Path::new("/proc/self/gone"),
            &Path::new("/proc").join(std::process::id().to_string()).join("gone")
        ));
        assert!(!same(Path::new("/tmp/a"), Path::new("/tmp/b")));
    }
}

//! Network namespaces by name or path, and the container ids that cnitool derives from them.

use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha512};

/// The directories of `ip netns`.
const DIRS: [&str; 2] = ["/run/netns", "/var/run/netns"];

/// The path of a namespace, which is given as a path or a name.
pub(crate) fn path(text: &str) -> PathBuf {
    if text.contains('/') {
        return absolute(Path::new(text));
    }
    let candidates = DIRS.map(|dir| Path::new(dir).join(text));
    candidates.iter().find(|path| path.exists()).unwrap_or(&candidates[0]).clone()
}

/// The absolute path, without `.` and `..`.
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

/// The container id that cnitool derives from the path of a namespace.
pub(crate) fn container_id(netns: &Path) -> String {
    let hash = Sha512::digest(absolute(netns).to_string_lossy().as_bytes());
    let hex: String = hash.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    format!("cnitool-{hex}")
}

/// Whether two paths name the same file, which need not exist: `/var/run` is usually a link to `/run`.
pub(crate) fn same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| {
        let dir = path.parent().and_then(|dir| dir.canonicalize().ok());
        dir.zip(path.file_name()).map(|(dir, name)| dir.join(name))
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
    fn container_ids_equal_those_of_cnitool() {
        // printf %s /var/run/netns/testing | sha512sum | cut -c 1-20
        assert_eq!(container_id(Path::new("/var/run/netns/testing")), "cnitool-77383ca0a0715733ca6f");
        assert_eq!(container_id(Path::new("/var/run/../run/netns/testing")), "cnitool-77383ca0a0715733ca6f");
    }

    #[test]
    fn paths_through_a_link_are_the_same() {
        assert!(same(
            Path::new("/proc/self/gone"),
            &Path::new("/proc").join(std::process::id().to_string()).join("gone")
        ));
        assert!(!same(Path::new("/tmp/a"), Path::new("/tmp/b")));
    }
}

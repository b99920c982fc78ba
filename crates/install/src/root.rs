//! The node's file system as this process sees it: at `/`, or below a directory when an image is built.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// As many links as the kernel follows in one path (`MAXSYMLINKS`, linux/namei.h).
const MAX_LINKS: usize = 40;

/// The node's root directory. Paths of the node begin with `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// The root at `path`.
    pub fn at(path: impl Into<PathBuf>) -> Root {
        Root(path.into())
    }

    /// The path of a node's file for this process. Symbolic links are resolved as on the node, so that a link to
    /// `/usr/lib/cni` in an image does not leave the image. The last component is not resolved: a file that is a link is
    /// replaced as a link.
    pub fn host_path(&self, path: &Path) -> PathBuf {
        match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => self.below_root(&self.canonical(parent)).join(name),
            _ => self.0.clone(),
        }
    }

    /// The path of a node's file or directory for this process, with all links resolved.
    pub fn target(&self, path: &Path) -> PathBuf {
        self.below_root(&self.canonical(path))
    }

    /// The path without links. Components that do not exist stay as they are.
    pub fn canonical(&self, path: &Path) -> PathBuf {
        let mut left: VecDeque<OsString> = parts(path);
        let mut done = PathBuf::from("/");
        let mut links = 0;
        while let Some(part) = left.pop_front() {
            if part == ".." {
                done.pop();
                continue;
            }
            done.push(&part);
            let Ok(target) = std::fs::read_link(self.below_root(&done)) else { continue };
            links += 1;
            if links > MAX_LINKS {
                continue;
            }
            done.pop();
            if target.is_absolute() {
                done = PathBuf::from("/");
            }
            parts(&target).into_iter().rev().for_each(|part| left.push_front(part));
        }
        done
    }

    fn below_root(&self, path: &Path) -> PathBuf {
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Whether it is the root of this process, so that the node is the one that runs.
    pub fn is_of_this_process(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// Whether this path of the node exists.
    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.target(path.as_ref()).exists()
    }
}

impl Default for Root {
    fn default() -> Root {
        Root::at("/")
    }
}

fn parts(path: &Path) -> VecDeque<OsString> {
    let named = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_of_an_image_stay_within_the_image() {
        let scratch = Scratch::new();
        std::fs::create_dir_all(scratch.path("/usr/lib/cni")).unwrap();
        std::fs::create_dir_all(scratch.path("/opt/cni")).unwrap();
        symlink("/usr/lib/cni", scratch.path("/opt/cni/bin")).unwrap();
        symlink("../../../../../../../../usr/lib", scratch.path("/opt/up")).unwrap();
        let root = scratch.root();
        assert_eq!(root.host_path(Path::new("/opt/cni/bin/bridge")), scratch.path("/usr/lib/cni/bridge"));
        assert_eq!(root.host_path(Path::new("/opt/up/cni/ptp")), scratch.path("/usr/lib/cni/ptp"));
        assert_eq!(root.canonical(Path::new("/opt/cni/bin/")), Path::new("/usr/lib/cni"));
        assert_eq!(root.host_path(Path::new("/opt/cni/bin")), scratch.path("/opt/cni/bin"));
    }

    #[test]
    fn a_loop_of_links_ends() {
        let scratch = Scratch::new();
        symlink("/b", scratch.path("/a")).unwrap();
        symlink("/a", scratch.path("/b")).unwrap();
        assert!(!scratch.root().has("/a/x"));
    }
}

//! The node's file system as this process sees it: at `/`, or below a folder when an image is made.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// As many links as the kernel follows in one path (`MAXSYMLINKS`, linux/namei.h).
const MOST_LINKS: usize = 40;

/// Where the node's root is. Paths of the node begin with `/` and mean the same on the node itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// The root at `path`.
    pub fn at(path: impl Into<PathBuf>) -> Root {
        Root(path.into())
    }

    /// Where a file of the node is for this process. Symbolic links are followed as the node would follow them, so
    /// that one to `/usr/lib/cni` within an image never leads out of the image. The last part of the path is left as
    /// it is: a file that is a link is replaced as a link.
    pub fn place(&self, path: &Path) -> PathBuf {
        match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => self.outside(&self.canonical(parent)).join(name),
            _ => self.0.clone(),
        }
    }

    /// Where a file or folder of the node is for this process, when links are followed to the end.
    pub fn target(&self, path: &Path) -> PathBuf {
        self.outside(&self.canonical(path))
    }

    /// The same file or folder under its one name without links. Parts that do not exist stay as they are.
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
            let Ok(target) = std::fs::read_link(self.outside(&done)) else { continue };
            links += 1;
            if links > MOST_LINKS {
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

    fn outside(&self, path: &Path) -> PathBuf {
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Whether there is something at this path of the node.
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
    use crate::survey::scratch::Scratch;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_of_an_image_stay_within_the_image() {
        let scratch = Scratch::new();
        std::fs::create_dir_all(scratch.path("/usr/lib/cni")).unwrap();
        std::fs::create_dir_all(scratch.path("/opt/cni")).unwrap();
        symlink("/usr/lib/cni", scratch.path("/opt/cni/bin")).unwrap();
        symlink("../../../../../../../../usr/lib", scratch.path("/opt/up")).unwrap();
        let root = scratch.root();
        assert_eq!(root.place(Path::new("/opt/cni/bin/bridge")), scratch.path("/usr/lib/cni/bridge"));
        assert_eq!(root.place(Path::new("/opt/up/cni/ptp")), scratch.path("/usr/lib/cni/ptp"));
        assert_eq!(root.canonical(Path::new("/opt/cni/bin/")), Path::new("/usr/lib/cni"));
        assert_eq!(root.place(Path::new("/opt/cni/bin")), scratch.path("/opt/cni/bin"));
    }

    #[test]
    fn a_circle_of_links_ends() {
        let scratch = Scratch::new();
        symlink("/b", scratch.path("/a")).unwrap();
        symlink("/a", scratch.path("/b")).unwrap();
        assert!(!scratch.root().has("/a/x"));
    }
}

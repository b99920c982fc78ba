//! Fresh copies of the measured programs, for each node.
//!
//! The layout of a program in the page cache depends on when its file was written: a file that was written while memory
//! was scarce starts a sixth slower as long as it stays cached. Copies that are made one after the other have the same
//! layout.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, Context, Result};

use crate::protocol::Invocation;

impl Invocation {
    /// The same invocation with copies of its programs in `folder`, which it creates.
    pub fn copied_to(self, folder: &Path) -> Result<Invocation> {
        std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        let copied = match self {
            Invocation::Plugins { folder: from } => {
                Invocation::Plugins { folder: copy(&from, folder, "plugins")? }
            }
            Invocation::Ipam { folder: from } => Invocation::Ipam { folder: copy(&from, folder, "plugins")? },
            Invocation::Runtime { folder: from } => {
                Invocation::Runtime { folder: copy(&from, folder, "plugins")? }
            }
            Invocation::Program { file } => Invocation::Program { file: copy(&file, folder, "program")? },
            Invocation::Tool { file, folder: from } => Invocation::Tool {
                file: copy(&file, folder, "podwire")?,
                folder: copy(&from, folder, "plugins")?,
            },
        };
        // Writes the copies to the disk now, not while something is measured.
        run(Command::new("sync").arg("--file-system").arg(folder))?;
        Ok(copied)
    }
}

/// Copies a file or a directory to another name. It follows symbolic links and keeps hard links between plugins.
fn copy(from: &Path, into: &Path, name: &str) -> Result<PathBuf> {
    let to = into.join(name);
    run(Command::new("cp")
        .args(["--recursive", "--dereference", "--preserve=links,mode"])
        .arg(from)
        .arg(&to))?;
    Ok(to)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

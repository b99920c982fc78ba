//! Fresh copies of what is measured, for each node.
//!
//! How a program lies in the page cache depends on how its file came there: one that was written while memory was scarce starts a sixth slower for as long
//! as it stays there. Copies of all sides, made one after the other in one moment, lie alike.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, Context, Result};

use crate::order::Way;

impl Way {
    /// The same way with copies of its programs in `folder`, which is made.
    pub fn copied_to(self, folder: &Path) -> Result<Way> {
        std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let copied = match self {
            Way::Plugins { folder: from } => Way::Plugins { folder: copy(&from, folder, "plugins")? },
            Way::Ipam { folder: from } => Way::Ipam { folder: copy(&from, folder, "plugins")? },
            Way::Runtime { folder: from } => Way::Runtime { folder: copy(&from, folder, "plugins")? },
            Way::Program { file } => Way::Program { file: copy(&file, folder, "program")? },
            Way::Tool { file, folder: from } => {
                Way::Tool { file: copy(&file, folder, "podwire")?, folder: copy(&from, folder, "plugins")? }
            }
        };
        // What has to be written to the disk is not to be written while others are measured.
        run(Command::new("sync").arg("--file-system").arg(folder))?;
        Ok(copied)
    }
}

/// A file or a folder, under another name. Plugins that are one file are one file again; links are followed.
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

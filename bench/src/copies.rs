//! Fresh copies of the measured programs, for each node.
//!
//! The layout of a program in the page cache depends on when its file was written: a file that was written while memory
//! was scarce starts a sixth slower as long as it stays cached. Copies that are made one after the other have the same
//! layout.

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

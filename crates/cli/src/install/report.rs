//! The output of an installation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use podwire_install::{InstallPlan, Kind, Layout, Reason, Step, Target};
use serde_json::{json, Value};

use crate::output::Output;
use crate::paint::Paint;

pub(super) struct Report<'a> {
    pub(super) plan: &'a InstallPlan,
    pub(super) layouts: &'a [Layout],
    pub(super) warnings: &'a [String],
    pub(super) dry_run: bool,
}

impl Report<'_> {
    pub(super) fn output(&self) -> Output {
        Output::new(self.text(Paint::stdout()), self.json())
    }

    fn text(&self, paint: Paint) -> String {
        let mut lines: Vec<String> = self.layouts.iter().map(layout_line).collect();
        let would = if self.dry_run { "would " } else { "" };
        // Files of one directory with the same step are one line.
        let mut groups: Vec<(String, PathBuf, Vec<String>)> = Vec::new();
        let steps = self
            .plan
            .steps
            .iter()
            .filter_map(|step| Some((format!("{would}{}", describe(step)?), step.path())));
        let remarks =
            self.plan.remarks.iter().map(|remark| (reason(remark.reason).to_owned(), remark.path.clone()));
        for (what, path) in steps.chain(remarks) {
            let dir = path.parent().unwrap_or(Path::new("/")).to_owned();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match groups.iter_mut().find(|(other, place, _)| *other == what && *place == dir) {
                Some((.., names)) => names.push(name),
                None => groups.push((what, dir, vec![name])),
            }
        }
        let group = |(what, dir, mut names): (String, PathBuf, Vec<String>)| {
            names.sort();
            format!("{}: {what}: {}", dir.display(), names.join(" "))
        };
        lines.extend(groups.into_iter().map(group));
        if self.plan.steps.is_empty() && self.plan.remarks.is_empty() {
            lines.push("nothing is installed".to_owned());
        }
        lines.extend(self.warnings.iter().map(|warning| format!("{} {warning}", paint.bad("warning:"))));
        lines.into_iter().map(|line| format!("{line}\n")).collect()
    }

    fn json(&self) -> Value {
        let layout = |layout: &Layout| {
            json!({
                "runtime": layout.runtime.name(),
                "config": layout.config,
                "binDirs": layout.bin_dirs,
                "confDir": layout.conf_dir,
            })
        };
        let mut kept: BTreeMap<&str, Vec<&Path>> = BTreeMap::new();
        for remark in &self.plan.remarks {
            kept.entry(remark.reason.name()).or_default().push(&remark.path);
        }
        json!({
            "dryRun": self.dry_run,
            "runtimes": self.layouts.iter().map(layout).collect::<Vec<_>>(),
            "steps": self.plan.steps.iter().map(|step| json!({ "do": step.verb(), "path": step.path() })).collect::<Vec<_>>(),
            "leftAlone": kept,
            "warnings": self.warnings,
        })
    }
}

fn layout_line(layout: &Layout) -> String {
    let config = layout.config.as_ref().map_or("no config".to_owned(), |path| path.display().to_string());
    let plugins: Vec<_> = layout.bin_dirs.iter().map(|dir| dir.display().to_string()).collect();
    let (name, networks) = (layout.runtime.name(), layout.conf_dir.display());
    format!("{name} ({config}): plugins in {}, networks in {networks}", plugins.join(":"))
}

/// A step as text; `None` for internal steps.
fn describe(step: &Step) -> Option<&'static str> {
    let is_network = |target: &Target| target.kind() == Kind::Network;
    Some(match step {
        Step::Put { backup: true, .. } => "replace, with a backup for --uninstall",
        Step::Put { update: true, .. } => "update",
        Step::Put { target, .. } if is_network(target) => "install the network",
        Step::Put { .. } => "install",
        Step::Restore(_) => "restore the backup",
        Step::Remove(_) => "remove",
        Step::SetAside(_) => "keep the backup as",
        Step::CreateDir(_) | Step::RemoveDir(_) | Step::DropBackup(_) | Step::RemoveDraft(_) => return None,
    })
}

fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::AlreadyThere => "already installed",
        Reason::Foreign => "not Podwire's, kept (--replace replaces them, --uninstall restores them)",
        Reason::Changed => "changed since its installation, kept",
        Reason::Directory => "is a directory, kept",
        Reason::Gone => "already removed",
        Reason::BackupLost => "the backup is lost",
    }
}

//! The plugins of this program, and how to recognise the program's file on disk.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::{Command, Hooks, NoHooks, Plugin};

/// The plugins that can be called in this process.
///
/// A plugin is called in-process only if the file that a runtime would execute for it is this program or a copy of
/// it. The linker writes a fingerprint of the plugins' sources into the file, as its build id.
#[derive(Clone, Copy)]
pub struct Registry<'p> {
    plugins: &'p [&'p dyn Plugin],
    fingerprint: &'p str,
    hooks: &'p dyn Hooks,
}

impl<'p> Registry<'p> {
    /// A registry of these plugins. Files with the build id `fingerprint` (hexadecimal) contain them.
    pub fn new(plugins: &'p [&'p dyn Plugin], fingerprint: &'p str) -> Registry<'p> {
        Registry { plugins, fingerprint, hooks: &NoHooks }
    }

    /// An empty registry: every plugin is executed.
    pub fn none() -> Registry<'static> {
        Registry { plugins: &[], fingerprint: "", hooks: &NoHooks }
    }

    /// Runs these hooks around every call.
    pub fn with_hooks(self, hooks: &'p dyn Hooks) -> Registry<'p> {
        Registry { hooks, ..self }
    }

    pub(crate) fn hooks(&self) -> &'p dyn Hooks {
        self.hooks
    }

    /// All plugins.
    pub fn plugins(&self) -> &'p [&'p dyn Plugin] {
        self.plugins
    }

    /// The plugin of type `kind`.
    pub fn find(&self, kind: &str) -> Option<&'p dyn Plugin> {
        self.plugins.iter().copied().find(|plugin| plugin.name() == kind)
    }

    /// The plugin that executing `file` as `kind` would run, if this program contains it.
    pub fn in_file(&self, kind: &str, file: &Path) -> Option<&'p dyn Plugin> {
        let plugin = self.find(kind)?;
        (!self.fingerprint.is_empty() && has_build_id(file, self.fingerprint)?).then_some(plugin)
    }

    /// The plugin that undoes what a plugin of this type did whose file is gone. Ours needs no file and recognises what its
    /// Go counterparts create. It never attaches in place of a missing plugin.
    pub fn in_place_of_missing(&self, kind: &str, command: Command) -> Option<&'p dyn Plugin> {
        matches!(command, Command::Del | Command::Gc).then(|| self.find(kind)).flatten()
    }
}

impl std::fmt::Debug for Registry<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.plugins.iter().map(|plugin| plugin.name())).finish()
    }
}

/// Whether an ELF file has this build id (hexadecimal). The build id is in a note in the first page.
fn has_build_id(file: &Path, wanted: &str) -> Option<bool> {
    // On the stack: this runs for every plugin of every chain, and some allocators map and unmap a page for it.
    let mut page = [0; 4096];
    let length = read_page(file, &mut page).ok()?;
    let page = &page[..length];
    if page.get(..4)? != b"\x7fELF" {
        return None;
    }
    // struct elf_note: name length 4, description length, type 3 (NT_GNU_BUILD_ID), then "GNU\0".
    let at = page.windows(8).position(|window| window == b"\x03\0\0\0GNU\0")?;
    let length = u32::from_ne_bytes(page.get(at - 4..at)?.try_into().ok()?) as usize;
    let id = page.get(at + 8..at + 8 + length.min(64))?;
    let digit = |value: u8| char::from_digit(value.into(), 16);
    let digits = id.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    Some(digits.map(digit).eq(wanted.chars().map(Some)))
}

fn read_page(file: &Path, page: &mut [u8]) -> std::io::Result<usize> {
    let mut file = File::open(file)?;
    let mut length = 0;
    while length < page.len() {
        match file.read(&mut page[length..])? {
            0 => break,
            more => length += more,
        }
    }
    Ok(length)
}

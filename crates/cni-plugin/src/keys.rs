//! The keys that a plugin reads from its config, so that a misspelt key can be reported: decoding skips unknown keys, as Go does.

/// The config keys of a plugin.
///
/// A path has the form `vlanTrunk[].id`. A key without listed keys below it may contain anything. A `*` at the end of a
/// path stands for any rest of the name. Every plugin has the keys of the spec; they are not listed.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// The paths, in tables that several plugins can share. `runtimeConfig.mac` is the capability `mac`.
    pub paths: &'static [&'static [&'static str]],
    /// A key whose value is the config of another plugin, and that plugin's type if the config has none.
    pub delegate: Option<(&'static str, &'static str)>,
}

impl Keys {
    /// The keys of a plugin without a delegate.
    pub const fn new(paths: &'static [&'static [&'static str]]) -> Keys {
        Keys { paths, delegate: None }
    }

    /// All paths.
    pub fn iter(&self) -> impl Iterator<Item = &'static str> {
        self.paths.iter().flat_map(|table| table.iter().copied())
    }
}

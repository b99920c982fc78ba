//! `podwire plugins` and `podwire version`.

use podwire_cni_spec::Version;
use podwire_plugins::{FINGERPRINT, PLUGINS};
use serde_json::{json, Value};

use crate::output::Output;
use crate::paint::Paint;
use crate::table::table;

/// `podwire plugins`.
pub(crate) fn plugins() -> Output {
    let mut sorted = PLUGINS.to_vec();
    sorted.sort_by_key(|plugin| plugin.name());
    // The about line of a plugin starts with its name, for people who run the plugin.
    let about = |name: &str, about: &'static str| {
        let rest = about.strip_prefix(name).map(|rest| rest.trim_start_matches([':', ' '])).unwrap_or(about);
        rest.to_owned()
    };
    let rows: Vec<_> = sorted.iter().map(|p| vec![p.name().to_owned(), about(p.name(), p.about())]).collect();
    let json: Vec<Value> = sorted
        .iter()
        .map(
            |p| json!({ "type": p.name(), "about": about(p.name(), p.about()), "cniVersions": p.versions() }),
        )
        .collect();
    Output::new(table(&["TYPE", "DESCRIPTION"], &rows, Paint::stdout()), json!({ "plugins": json }))
}

/// `podwire version`.
pub(crate) fn version() -> Output {
    let number = env!("CARGO_PKG_VERSION");
    let spec: Vec<_> = Version::ALL.iter().map(|version| version.as_str()).collect();
    let text = format!("podwire {number}\nCNI     {}\nplugins {FINGERPRINT}\n", spec.join(" "));
    Output::new(text, json!({ "podwire": number, "cniVersions": spec, "plugins": FINGERPRINT }))
}

//! Calls a plugin's STATUS, which parses and checks the whole config and changes nothing.

use podwire_cni_plugin::dispatch::{dispatch, Process};
use podwire_cni_plugin::{Plugin, Registry};
use podwire_plugins::AgentHooks;
use serde_json::Value;

/// Keys that name files. The fuzzer removes them so that a plugin reads and writes no file of the machine.
const FILES: [&str; 7] =
    ["rangefromfile", "resolvconf", "datadir", "subnetfile", "debugfile", "commandlog", "cnioutput"];

/// Removes these keys at every depth.
pub fn without_files(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|key, _| !FILES.contains(&key.to_ascii_lowercase().as_str()));
            object.values_mut().for_each(without_files);
        }
        Value::Array(list) => list.iter_mut().for_each(without_files),
        _ => {}
    }
}

/// Calls STATUS with this config. The output must be empty, or one error object.
pub fn call(plugin: &dyn Plugin, stdin: &[u8]) {
    let env = |name: &str| match name {
        "CNI_COMMAND" => Some("STATUS".to_string()),
        "CNI_PATH" => Some("/nonexistent".to_string()),
        _ => None,
    };
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut input = stdin;
    let mut process = Process { env: &env, stdin: &mut input, stdout: &mut stdout, stderr: &mut stderr };
    let status = dispatch(plugin, &Registry::none().with_hooks(&AgentHooks), &mut process);
    assert!(stderr.is_empty(), "{}", String::from_utf8_lossy(&stderr));
    match status {
        0 => assert!(stdout.is_empty()),
        1 => {
            let output: Value = serde_json::from_slice(&stdout).expect("one JSON document");
            let error = podwire_cni_spec::Error::from_json(&output).expect("an error object");
            assert!(error.code != 0 && !error.msg.is_empty());
        }
        other => panic!("exit status {other}"),
    }
}

/// The plugin of this type.
pub fn plugin(kind: &str) -> &'static dyn Plugin {
    *podwire_plugins::PLUGINS.iter().find(|plugin| plugin.name() == kind).expect("a plugin")
}

//! Reads Kubernetes objects from files and directories of YAML or JSON, as `kubectl apply` does, or from the node's
//! agent.

use std::path::{Path, PathBuf};
use std::time::Duration;

use podwire_agent_ipc::{client, policy};
use podwire_policy::Snapshot;
use serde_json::Value;

/// Pods without addresses get addresses of these networks, which many clusters use.
pub(super) const POD_NETWORKS: [&str; 2] = ["10.244.0.0/16", "fd00:10:244::/64"];

/// The agent may be busy with a change of many policies.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The documents of a YAML file, without empty ones. JSON is YAML, too.
pub(super) fn documents(path: &Path) -> Result<Vec<Value>, podwire_cni_spec::Error> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        podwire_cni_spec::Error::new(
            podwire_cni_spec::error::code::IO,
            format!("read {}: {error}", path.display()),
        )
    })?;
    parse(&text).map_err(|reason| podwire_cni_spec::Error::decode(format!("{}: {reason}", path.display())))
}

/// The documents of a text.
pub(super) fn parse(text: &str) -> Result<Vec<Value>, String> {
    podwire_policy_agent::yaml_documents(text)
}

/// Reads files and directories, which are read recursively, into a snapshot.
pub(super) fn read(paths: &[PathBuf], into: &mut Snapshot) -> Result<(), podwire_cni_spec::Error> {
    let mut files = Vec::new();
    for path in paths {
        collect(path, true, &mut files)?;
    }
    for file in files {
        for document in documents(&file)? {
            add(document, into).map_err(|error| {
                podwire_cni_spec::Error::new(error.code, format!("{}: {}", file.display(), error.msg))
            })?;
        }
    }
    Ok(())
}

/// Reads the objects by which the policy agent at `socket` decides.
pub(crate) fn read_agent(socket: &Path, into: &mut Snapshot) -> Result<(), podwire_cni_spec::Error> {
    let failed = |reason: String| {
        let text = format!("ask the policy agent at {}: {reason}", socket.display());
        let hint = "start the node's agent with --policy, or name files with --file";
        podwire_cni_spec::Error::new(podwire_cni_spec::error::code::NOT_AVAILABLE, text).with_details(hint)
    };
    let mut after = 0;
    loop {
        let request = policy::Request::Objects { after };
        let response =
            client::request(socket, &request, TIMEOUT).map_err(|error| failed(error.to_string()))?;
        if !response.enforced {
            return Err(failed(response.reason));
        }
        if response.objects.is_empty() {
            return Ok(());
        }
        after += response.objects.len();
        for object in response.objects {
            add(object, into)
                .map_err(|error| failed(format!("the objects changed meanwhile: {}", error.msg)))?;
        }
    }
}

/// Adds one object.
pub(super) fn add(object: Value, into: &mut Snapshot) -> Result<(), podwire_cni_spec::Error> {
    match into.add(object) {
        Ok(_) => Ok(()),
        Err(error) => Err(podwire_cni_spec::Error::decode(error.to_string())),
    }
}

fn collect(path: &Path, named: bool, files: &mut Vec<PathBuf>) -> Result<(), podwire_cni_spec::Error> {
    let failed = |error| {
        podwire_cni_spec::Error::new(
            podwire_cni_spec::error::code::IO,
            format!("read {}: {error}", path.display()),
        )
    };
    if !std::fs::metadata(path).map_err(failed)?.is_dir() {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        // A file that the user named is always read; in a directory the extension decides.
        if named || ["yaml", "yml", "json"].contains(&extension) {
            files.push(path.to_path_buf());
        }
        return Ok(());
    }
    let entries = std::fs::read_dir(path).map_err(failed)?;
    let mut inside = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(failed)?;
    inside.sort();
    inside.iter().try_for_each(|path| collect(path, false, files))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_are_parsed_as_kubectl_does() {
        let text = "a: 1\nb: \"1\"\nc: on\nd: ~\ne: [80, http]\n---\n# nothing\n---\n{\"json\": true}\n";
        let all = parse(text).unwrap();
        assert_eq!(
            all,
            [json!({ "a": 1, "b": "1", "c": "on", "d": null, "e": [80, "http"] }), json!({ "json": true })]
        );
    }

    #[test]
    fn a_duplicate_key_is_an_error_with_its_line() {
        let error = parse("a: 1\na: 2\n").unwrap_err();
        assert!(error.contains('2') && error.to_lowercase().contains("duplicate"), "{error}");
    }
}

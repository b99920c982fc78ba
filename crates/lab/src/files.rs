//! The objects in the files of a lab: those of policies, those of Services, and the pods of both, which the lab runs.

use std::path::PathBuf;

use podwire_policy::api::Pod;
use podwire_policy::Snapshot;
use podwire_policy_agent::PolicyFiles;
use podwire_services::Kind;
use serde_json::Value;

use crate::{Error, LabSpec, Result};

/// The objects of all files.
#[derive(Default)]
pub(crate) struct LabFiles {
    /// The pods with their own network, which the lab runs.
    pub pods: Vec<Pod>,
    /// The number of policies.
    pub policies: usize,
    /// All other objects of the policy files.
    pub others: Vec<Value>,
    /// Services and what they depend on.
    pub services: Vec<Value>,
}

impl LabFiles {
    /// Reads the files as the agents read them: an invalid file fails here, and nothing changes. `None` if the lab has no
    /// files.
    pub fn read(spec: &LabSpec) -> Result<Option<LabFiles>> {
        let LabSpec { policies, services, .. } = spec;
        if policies.is_none() && services.is_none() {
            return Ok(None);
        }
        let (mut files, mut all) = (LabFiles::default(), Snapshot::new());
        for dir in directories(spec) {
            let source = PolicyFiles::new(dir);
            source.read().map_err(invalid)?;
            for object in source.documents().map_err(invalid)?.into_iter().flat_map(objects) {
                // Also finds an object that is in both directories.
                all.add(object.clone()).map_err(invalid)?;
                files.add(object, policies.as_ref() == Some(dir), services.as_ref() == Some(dir))?;
            }
        }
        files.policies = all.network_policies.len() + all.cluster_network_policies.len();
        Ok(Some(files))
    }

    fn add(&mut self, object: Value, is_policy_file: bool, is_service_file: bool) -> Result<()> {
        if is_service_file && Kind::of(&object).is_some() {
            self.services.push(object.clone());
        }
        let mut alone = Snapshot::new();
        alone.add(object.clone()).map_err(invalid)?;
        match alone.pods.pop().filter(Pod::has_pod_network) {
            Some(pod) => self.pods.push(pod),
            None if is_policy_file => self.others.push(object),
            None => {}
        }
        Ok(())
    }
}

fn invalid(error: impl std::fmt::Display) -> Error {
    Error::input(error.to_string(), "")
}

/// One directory may have both.
fn directories(spec: &LabSpec) -> Vec<&PathBuf> {
    let mut all: Vec<&PathBuf> = spec.policies.iter().chain(&spec.services).collect();
    all.dedup();
    all
}

/// The objects of a document, which may be a List.
fn objects(document: Value) -> Vec<Value> {
    let is_list = document["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match document.get("items").and_then(Value::as_array) {
        Some(items) if is_list => items.iter().cloned().flat_map(objects).collect(),
        _ => vec![document],
    }
}

//! Runs an operation for several pods in parallel.

use std::io::BufRead;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use podwire_sandbox::PodName;
use serde_json::json;

use super::namespace_flag::NamespaceFlag;
use crate::failure::Failure;
use crate::output::Output;

/// The number of parallel operations. The kernel creates namespaces one after the other, so more threads would only wait.
const THREADS: usize = 16;
/// The number of failures that are printed in full.
const SHOWN: usize = 3;

/// The pods with these names. `-` stands for names on standard input, one per line.
pub(super) fn named(names: &[String], namespace: &NamespaceFlag) -> Result<Vec<PodName>, Failure> {
    let mut pods = Vec::new();
    for name in names {
        match name.as_str() {
            "-" => {
                for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                    if !line.trim().is_empty() {
                        pods.push(namespace.pod(line.trim())?);
                    }
                }
            }
            name => pods.push(namespace.pod(name)?),
        }
    }
    Ok(pods)
}

/// The result for each pod, in the order of the pods.
pub(super) struct Outcome<T> {
    pub(super) done: Vec<(PodName, T)>,
    pub(super) failed: Vec<(PodName, podwire_sandbox::Error)>,
}

/// Runs `work` for each pod.
pub(super) fn each<T: Send>(
    pods: &[PodName],
    work: impl Fn(&PodName) -> podwire_sandbox::Result<T> + Sync,
) -> Outcome<T> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(pods.len())));
    let worker = || {
        while let Some(pod) = pods.get(next.fetch_add(1, Ordering::Relaxed)) {
            let result = work(pod);
            results.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((pod.clone(), result));
        }
    };
    match pods.len() {
        0 | 1 => worker(),
        many => std::thread::scope(|scope| (0..many.min(THREADS)).for_each(|_| drop(scope.spawn(worker)))),
    }
    let mut outcome = Outcome { done: Vec::new(), failed: Vec::new() };
    let mut results = results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let position = |pod: &PodName| pods.iter().position(|one| one == pod);
    results.sort_by_cached_key(|(pod, _)| position(pod));
    for (pod, result) in results {
        match result {
            Ok(result) => outcome.done.push((pod, result)),
            Err(error) => outcome.failed.push((pod, error)),
        }
    }
    outcome
}

/// The output, or a failure that includes it. `verb` names the failed operation. In JSON, `failed` has every pod with its
/// error, which the failure's text abbreviates.
pub(super) fn conclude(
    mut output: Output,
    failed: &[(PodName, podwire_sandbox::Error)],
    verb: &str,
) -> Result<Output, Failure> {
    let failure = |(pod, error): &(PodName, podwire_sandbox::Error)| json!({ "namespace": pod.namespace(), "name": pod.name(), "error": error.to_cni().to_json() });
    output.json["failed"] = failed.iter().map(failure).collect();
    let (first, error) = match failed {
        [] => return Ok(output),
        [(pod, error), ..] => (pod, error.to_cni()),
    };
    let failure = match failed.len() {
        1 => Failure::new(format!("cannot {verb} pod {first}"), error),
        many => {
            let one =
                |(pod, error): &(PodName, podwire_sandbox::Error)| format!("{pod}: {}", error.to_cni().msg);
            let mut msg = failed.iter().take(SHOWN).map(one).collect::<Vec<_>>().join("; ");
            if many > SHOWN {
                msg += &format!("; and {} more", many - SHOWN);
            }
            Failure::new(format!("cannot {verb} {many} pods"), podwire_cni_spec::Error { msg, ..error })
        }
    };
    Err(failure.with_output(output))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn every_failed_pod_is_in_the_json_with_its_error() {
        let names: Vec<PodName> =
            (0..5).map(|i| PodName::new("shop", &format!("web-{i}")).unwrap()).collect();
        let error = || podwire_sandbox::Error::from(podwire_cni_spec::Error::internal("x"));
        let failed: Vec<_> = names.iter().map(|name| (name.clone(), error())).collect();
        let output = || Output::new("", json!({ "pods": [] }));
        let failure = conclude(output(), &failed, "stop").unwrap_err();
        assert!(failure.error.msg.ends_with("; and 2 more"), "{failure:?}");
        let printed = failure.done.unwrap().json;
        let named: Vec<&Value> =
            printed["failed"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
        assert_eq!(named, ["web-0", "web-1", "web-2", "web-3", "web-4"]);
        assert_eq!(printed["failed"][4]["error"]["code"], 999);
        assert_eq!(conclude(output(), &[], "stop").unwrap().json, json!({ "pods": [], "failed": [] }));
    }
}

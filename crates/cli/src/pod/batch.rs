//! Runs an operation for several pods in parallel.

use std::io::BufRead;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use podwire_sandbox::PodName;

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

/// The output, or a failure that includes it. `verb` names the failed operation.
pub(super) fn conclude(
    output: Output,
    failed: &[(PodName, podwire_sandbox::Error)],
    verb: &str,
) -> Result<Output, Failure> {
    let (first, error) = match failed {
        [] => return Ok(output),
        [(pod, error), ..] => (pod, error.to_cni()),
    };
    let any_done = !output.text.is_empty();
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
    Err(if any_done { failure.with_output(output) } else { failure })
}

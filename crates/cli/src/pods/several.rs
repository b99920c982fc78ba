//! The same for several pods at once.

use std::io::BufRead;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use podwire_sandbox::PodName;

use super::Namespace;
use crate::{Answer, Failure};

/// So many pods are worked on at the same time. The kernel makes one namespace after the other whoever asks; more would
/// only wait for each other.
const AT_ONCE: usize = 16;
/// So many failures are told in full.
const TOLD: usize = 3;

/// The pods of these names; `-` stands for those on standard input, one a line.
pub(super) fn named(names: &[String], namespace: &Namespace) -> Result<Vec<PodName>, Failure> {
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

/// What came of it for each pod, in their order.
pub(super) struct Outcome<T> {
    pub(super) done: Vec<(PodName, T)>,
    pub(super) failed: Vec<(PodName, podwire_sandbox::Error)>,
}

/// Does `work` for each pod.
pub(super) fn each<T: Send>(
    pods: &[PodName],
    work: impl Fn(&PodName) -> podwire_sandbox::Result<T> + Sync,
) -> Outcome<T> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(pods.len())));
    let labour = || {
        while let Some(pod) = pods.get(next.fetch_add(1, Ordering::Relaxed)) {
            let result = work(pod);
            results.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((pod.clone(), result));
        }
    };
    match pods.len() {
        0 | 1 => labour(),
        many => std::thread::scope(|scope| (0..many.min(AT_ONCE)).for_each(|_| drop(scope.spawn(labour)))),
    }
    let mut outcome = Outcome { done: Vec::new(), failed: Vec::new() };
    let mut results = results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let place = |pod: &PodName| pods.iter().position(|one| one == pod);
    results.sort_by_cached_key(|(pod, _)| place(pod));
    for (pod, result) in results {
        match result {
            Ok(result) => outcome.done.push((pod, result)),
            Err(error) => outcome.failed.push((pod, error)),
        }
    }
    outcome
}

/// The answer, or the failure after it. `verb` is what could not be done to them.
pub(super) fn conclude(
    answer: Answer,
    failed: &[(PodName, podwire_sandbox::Error)],
    verb: &str,
) -> Result<Answer, Failure> {
    let (first, error) = match failed {
        [] => return Ok(answer),
        [(pod, error), ..] => (pod, error.to_cni()),
    };
    let any_done = !answer.text.is_empty();
    let failure = match failed.len() {
        1 => Failure::new(format!("cannot {verb} pod {first}"), error),
        many => {
            let one =
                |(pod, error): &(PodName, podwire_sandbox::Error)| format!("{pod}: {}", error.to_cni().msg);
            let mut msg = failed.iter().take(TOLD).map(one).collect::<Vec<_>>().join("; ");
            if many > TOLD {
                msg += &format!("; and {} more", many - TOLD);
            }
            Failure::new(format!("cannot {verb} {many} pods"), podwire_cni_spec::Error { msg, ..error })
        }
    };
    Err(if any_done { failure.after(answer) } else { failure })
}

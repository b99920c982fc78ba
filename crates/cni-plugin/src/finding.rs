//! Differences between what ADD created and the current state, with their repairs.

use crate::{Error, Result};

/// One difference between the expected and the current state of an attachment. CHECK reports it.
pub struct Finding<'p> {
    difference: Error,
    repair: Option<Box<dyn FnOnce() -> Result<()> + 'p>>,
}

impl<'p> Finding<'p> {
    /// A difference that only a new ADD repairs.
    pub fn new(text: impl Into<String>) -> Finding<'p> {
        Finding { difference: podwire_cni_spec::Error::internal(text).into(), repair: None }
    }

    /// Adds the repair. The closure owns its data: it runs much later, or never.
    pub fn repaired_by(self, repair: impl FnOnce() -> Result<()> + 'p) -> Finding<'p> {
        Finding { repair: Some(Box::new(repair)), ..self }
    }

    /// Whether it can be repaired without a new ADD.
    pub fn is_repairable(&self) -> bool {
        self.repair.is_some()
    }

    /// Repairs it. A difference without a repair is returned as the error.
    pub fn repair(self) -> Result<()> {
        match self.repair {
            Some(repair) => repair(),
            None => Err(self.difference),
        }
    }

    /// Repairs all of them in order and goes on past failures; returns their number.
    pub fn repair_all(findings: Vec<Finding<'_>>) -> Result<usize> {
        let count = findings.len();
        Error::all(findings.into_iter().filter_map(|finding| finding.repair().err()).collect())?;
        Ok(count)
    }

    /// The answer of CHECK: nothing, or an error that names every difference.
    pub fn report(findings: Vec<Finding<'_>>) -> Result<()> {
        let Some(first) = findings.first() else { return Ok(()) };
        let hint = if findings.iter().all(Finding::is_repairable) {
            "the pod's network was changed after ADD; `podwire cni check --repair` repairs it"
        } else {
            "the pod's network was changed after ADD; recreate the pod to repair it"
        };
        let code = first.difference.to_cni().code;
        let texts: Vec<String> = findings.iter().map(ToString::to_string).collect();
        // The hint of a finding is closer to the cause, so it comes first.
        let mut hints: Vec<String> = findings.iter().map(|one| one.difference.to_cni().advice()).collect();
        hints.push(hint.into());
        hints.retain(|hint| !hint.is_empty());
        hints.dedup();
        Err(podwire_cni_spec::Error::new(code, texts.join("; ")).with_hint(hints.join("; ")).into())
    }
}

impl std::fmt::Display for Finding<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.difference.to_cni().msg)
    }
}

impl std::fmt::Debug for Finding<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Finding({self}, {})", if self.is_repairable() { "repairable" } else { "not repairable" })
    }
}

/// An error that ended the comparison is a finding too.
impl From<Error> for Finding<'_> {
    fn from(difference: Error) -> Self {
        Finding { difference, repair: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn the_report_names_every_difference_and_whether_it_is_repairable() {
        assert!(Finding::report(Vec::new()).is_ok());
        let repairable = || Finding::new("eth0 is down").repaired_by(|| Ok(()));
        let error = Finding::report(vec![repairable()]).unwrap_err().to_cni();
        assert!(error.hint.contains("--repair"), "{error:?}");
        let error =
            Finding::report(vec![repairable(), Finding::new("eth0 is another")]).unwrap_err().to_cni();
        assert_eq!(error.msg, "eth0 is down; eth0 is another");
        assert!(!error.hint.contains("--repair"), "{error:?}");
    }

    #[test]
    fn repair_runs_the_closure_or_returns_the_difference() {
        let taken = Cell::new(false);
        let step = || {
            taken.set(true);
            Ok(())
        };
        Finding::new("eth0 is down").repaired_by(step).repair().unwrap();
        assert!(taken.get());
        assert_eq!(Finding::new("eth0 is gone").repair().unwrap_err().to_string(), "eth0 is gone");
    }
}

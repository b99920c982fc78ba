//! What is not as ADD left it, and how to put it back.

use crate::{Error, Result};

/// One difference between what an attachment should be and what is there. CHECK reports it; a repair puts it right.
pub struct Finding<'p> {
    what: Error,
    mend: Option<Box<dyn FnOnce() -> Result<()> + 'p>>,
}

impl<'p> Finding<'p> {
    /// A difference that only a new attachment mends.
    pub fn new(what: impl Into<String>) -> Finding<'p> {
        Finding { what: podwire_cni_spec::Error::internal(what).into(), mend: None }
    }

    /// How to put it back. The steps own what they need: they may be taken much later, or never.
    pub fn mended_by(self, mend: impl FnOnce() -> Result<()> + 'p) -> Finding<'p> {
        Finding { mend: Some(Box::new(mend)), ..self }
    }

    /// Whether it can be put back without a new attachment.
    pub fn can_be_mended(&self) -> bool {
        self.mend.is_some()
    }

    /// Puts it back. What cannot be mended is an error, in the words of the finding.
    pub fn mend(self) -> Result<()> {
        match self.mend {
            Some(mend) => mend(),
            None => Err(self.what),
        }
    }

    /// Mends all of them, in order, past those that fail; says how many there were.
    pub fn mend_all(findings: Vec<Finding<'_>>) -> Result<usize> {
        let count = findings.len();
        Error::all(findings.into_iter().filter_map(|finding| finding.mend().err()).collect())?;
        Ok(count)
    }

    /// What CHECK answers: nothing, or an error that names every difference.
    pub fn report(findings: Vec<Finding<'_>>) -> Result<()> {
        let Some(first) = findings.first() else { return Ok(()) };
        let hint = match findings.iter().all(Finding::can_be_mended) {
            true => {
                "something changed the pod's network since ADD; `podwire cni check --repair` puts it back"
            }
            false => "something changed the pod's network since ADD; attach it anew to repair it",
        };
        let code = first.what.to_cni().code;
        let texts: Vec<String> = findings.iter().map(ToString::to_string).collect();
        // What a finding has to say itself is nearer to the cause.
        let mut hints: Vec<String> = findings.iter().map(|one| one.what.to_cni().details).collect();
        hints.push(hint.into());
        hints.retain(|hint| !hint.is_empty());
        hints.dedup();
        Err(podwire_cni_spec::Error::new(code, texts.join("; ")).with_details(hints.join("; ")).into())
    }
}

impl std::fmt::Display for Finding<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what.to_cni().msg)
    }
}

impl std::fmt::Debug for Finding<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Finding({self}, {})", if self.can_be_mended() { "can be mended" } else { "attach anew" })
    }
}

/// An error that ended the comparison is a finding too: nothing more can be told.
impl From<Error> for Finding<'_> {
    fn from(what: Error) -> Self {
        Finding { what, mend: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn every_difference_is_named_and_the_hint_says_whether_it_can_be_mended() {
        assert!(Finding::report(Vec::new()).is_ok());
        let mendable = || Finding::new("eth0 is down").mended_by(|| Ok(()));
        let error = Finding::report(vec![mendable()]).unwrap_err().to_cni();
        assert!(error.details.contains("--repair"), "{error:?}");
        let error = Finding::report(vec![mendable(), Finding::new("eth0 is another")]).unwrap_err().to_cni();
        assert_eq!(error.msg, "eth0 is down; eth0 is another");
        assert!(!error.details.contains("--repair"), "{error:?}");
    }

    #[test]
    fn mending_takes_the_steps_or_tells_why_not() {
        let taken = Cell::new(false);
        let step = || {
            taken.set(true);
            Ok(())
        };
        Finding::new("eth0 is down").mended_by(step).mend().unwrap();
        assert!(taken.get());
        assert_eq!(Finding::new("eth0 is gone").mend().unwrap_err().to_string(), "eth0 is gone");
    }
}

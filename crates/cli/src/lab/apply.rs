//! `podwire lab apply`.

use podwire_lab::{Applied, Lab};
use serde_json::json;

use crate::failure::Failure;
use crate::output::Output;
use crate::paint::Paint;
use crate::policy::{warning_json, warning_lines};

pub(super) const EXAMPLES: &str = "Examples:
  podwire lab up --pods 0 --policies shop/
  vi shop/db.yaml && podwire lab apply
  podwire lab exec shop/web -- ping -c 1 ADDRESS    an address of `podwire lab status`

If a file is invalid, nothing changes. New pods in the files are started. Pods that are no longer
in the files keep running without labels; `podwire lab exec n1 -- podwire pod rm shop/web` removes
one.";

pub(super) fn run(name: &str) -> Result<Output, Failure> {
    let applied = Lab::lock(name).and_then(|mut lab| lab.apply());
    let Applied { policies, services, pods, took, warnings } =
        applied.map_err(Failure::context(format!("cannot apply the files to lab {name}")))?;
    let took = took.as_secs_f64();
    let text = format!(
        "{policies} policies, {services} Services and {} pods, applied by every agent after {took:.2} s\n",
        pods.len()
    );
    let json = json!({
        "policies": policies,
        "services": services,
        "pods": pods,
        "seconds": took,
        "warnings": warnings.iter().map(warning_json).collect::<Vec<_>>(),
    });
    Ok(Output::new(text + &warning_lines(&warnings, Paint::stdout()), json))
}

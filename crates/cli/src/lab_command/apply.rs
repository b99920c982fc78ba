//! `podwire lab apply`.

use podwire_lab::{Applied, Lab};
use serde_json::json;

use crate::{Answer, Failure};

pub(super) const EXAMPLES: &str = "Examples:
  podwire lab up --pods 0 --policies shop/
  vi shop/db.yaml && podwire lab apply
  podwire lab exec shop/web -- ping -c 1 ADDRESS    (`podwire lab status` tells it)

A file with a mistake changes nothing. Pods that are new in the files are run; pods that are in them no more run on, without
labels (`podwire lab exec n1 -- podwire pod rm shop/web` removes one).";

pub(super) fn run(name: &str) -> Result<Answer, Failure> {
    let applied = Lab::hold(name).and_then(|mut lab| lab.apply());
    let Applied { policies, pods, took } =
        applied.map_err(Failure::to(format!("cannot apply policies to lab {name}")))?;
    let took = took.as_secs_f64();
    let text =
        format!("{policies} policies and {} pods; every agent enforces them after {took:.2} s\n", pods.len());
    Ok(Answer::new(text, json!({ "policies": policies, "pods": pods, "seconds": took })))
}

//! How long changes of pods take to reach the kernel: the EndpointSlice controller writes the time of the change into the
//! slice.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde_json::Value;

use crate::{Kind, ObjectName};

/// The time of the change of a pod or Service that changed a slice.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The changes that are not in the kernel yet.
#[derive(Debug)]
pub(super) struct TriggerTimes {
    /// Changes before the start waited for the agent, not the agent for the kernel.
    start: SystemTime,
    /// The last annotation of each slice: a list repeats it.
    seen: BTreeMap<ObjectName, String>,
    pending: Vec<SystemTime>,
}

impl TriggerTimes {
    pub fn new(start: SystemTime) -> TriggerTimes {
        TriggerTimes { start, seen: BTreeMap::new(), pending: Vec::new() }
    }

    /// The complete list of slices.
    pub fn listed(&mut self, slices: &[Value]) {
        let mut before = std::mem::take(&mut self.seen);
        for slice in slices {
            let name = ObjectName::of(Kind::EndpointSlice, slice);
            if let Some(seen) = before.remove(&name) {
                self.seen.insert(name, seen);
            }
            self.changed(slice);
        }
    }

    /// A new or changed slice.
    pub fn changed(&mut self, slice: &Value) {
        let Some(written) = slice["metadata"]["annotations"][TRIGGER_TIME].as_str() else { return };
        let name = ObjectName::of(Kind::EndpointSlice, slice);
        if self.seen.get(&name).is_some_and(|seen| seen == written) {
            return;
        }
        self.seen.insert(name, written.to_owned());
        let time = written.parse::<Timestamp>().ok().map(SystemTime::from);
        self.pending.extend(time.filter(|time| *time > self.start));
    }

    /// A deleted slice. It has the time of an earlier change.
    pub fn deleted(&mut self, name: &ObjectName) {
        self.seen.remove(name);
    }

    /// How long the pending changes took if they are in the kernel now.
    pub fn applied(&mut self, now: SystemTime) -> impl Iterator<Item = Duration> + '_ {
        // The clock of the controller may be ahead.
        self.pending.drain(..).map(move |time| now.duration_since(time).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use serde_json::json;

    use super::*;

    /// Seconds after 2001-09-09T01:46:40Z.
    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_000_000_000 + seconds)
    }

    fn slice(name: &str, time: &str) -> Value {
        json!({ "metadata": { "namespace": "x", "name": name, "annotations": { TRIGGER_TIME: time } } })
    }

    #[test]
    fn each_change_after_the_start_is_measured_once() {
        let mut times = TriggerTimes::new(at(0));
        let took = |times: &mut TriggerTimes, seconds| {
            times.applied(at(seconds)).map(|took| took.as_millis()).collect::<Vec<_>>()
        };
        times.listed(&[slice("a", "2001-09-09T01:46:39Z"), slice("b", "2001-09-09T01:46:41Z"), json!({})]);
        assert_eq!(took(&mut times, 3), [2000]);
        assert!(took(&mut times, 4).is_empty());
        // The same change again, another one, a clock that is ahead, and no time.
        times.changed(&slice("b", "2001-09-09T01:46:41Z"));
        times.changed(&slice("b", "2001-09-09T01:46:45.5Z"));
        times.changed(&slice("a", "2001-09-09T01:47:00Z"));
        times.changed(&slice("a", "yesterday"));
        assert_eq!(took(&mut times, 6), [500, 0]);
        times.listed(&[slice("b", "2001-09-09T01:46:45.5Z")]);
        assert!(took(&mut times, 7).is_empty());
        let name = ObjectName { namespace: "x".into(), name: "b".into() };
        times.deleted(&name);
        assert!(took(&mut times, 8).is_empty());
        times.changed(&slice("b", "2001-09-09T01:46:48Z"));
        assert_eq!(took(&mut times, 9), [1000]);
    }
}

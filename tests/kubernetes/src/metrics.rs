//! Metrics: all that the docs name have true values.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use podwire_tests::project;

use crate::{Cluster, Machine};

/// What a daemon's `/metrics` says.
pub struct Metrics {
    /// The values, by name and labels as they are printed.
    values: BTreeMap<String, f64>,
    /// The names that are described, without the suffix of counters.
    described: BTreeSet<String>,
}

impl Metrics {
    /// Reads the OpenMetrics text format.
    pub fn read(text: &str) -> Metrics {
        let (comments, values): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with('#'));
        // Labels may have spaces, values have none.
        let value = |line: &&str| {
            line.rsplit_once(' ').and_then(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        };
        let described = |line: &&str| Some(line.strip_prefix("# TYPE ")?.split_once(' ')?.0.to_owned());
        Metrics {
            values: values.iter().filter_map(value).collect(),
            described: comments.iter().filter_map(described).collect(),
        }
    }

    /// A value: of the exact series if the name has labels, else the sum of all series. A histogram counts its
    /// observations. A family without series is not printed at all; it is 0.
    pub fn value(&self, name: &str) -> f64 {
        let is_one_of = |series: &&String| {
            let bare = series.split('{').next().unwrap_or_default();
            **series == name || bare == name || bare.strip_suffix("_count") == Some(name)
        };
        self.values.keys().filter(is_one_of).map(|series| self.values[series]).sum()
    }

    fn describes(&self, name: &str) -> bool {
        self.described.contains(name.strip_suffix("_total").unwrap_or(name))
    }

    /// What differs from the expected ranges; also a documented name that the daemon does not have or that nothing is
    /// expected of. A family with labels of which 0 is expected may be absent.
    pub fn differences(
        &self,
        documented: &Documented,
        expected: &[(&str, RangeInclusive<f64>)],
    ) -> Vec<String> {
        let is_expected = |name: &str, values: fn(&RangeInclusive<f64>) -> bool| {
            expected.iter().any(|(one, range)| one.split('{').next() == Some(name) && values(range))
        };
        let may_be_absent =
            |name: &str, has_labels| has_labels && is_expected(name, |range| range.contains(&0.0));
        let undescribed = documented
            .iter()
            .filter(|(name, labels)| !self.describes(name) && !may_be_absent(name, **labels));
        let undescribed = undescribed.map(|(name, _)| name);
        let unexpected = documented.keys().filter(|name| !is_expected(name, |_| true));
        let wrong = expected.iter().filter(|(name, range)| !range.contains(&self.value(name)));
        undescribed
            .map(|name| format!("{name} is not there"))
            .chain(unexpected.map(|name| format!("the test expects nothing of {name}")))
            .chain(wrong.map(|(name, range)| format!("{name} is {}, not in {range:?}", self.value(name))))
            .collect()
    }
}

/// The metrics that the docs list: the name without labels, and whether it has labels.
pub type Documented = BTreeMap<String, bool>;

/// The metrics that a page lists in tables. A row `prefix_…` means the metrics of policies.
pub fn documented(page: &str) -> Documented {
    let mut metrics = Documented::new();
    let is_metric =
        |name: &str| ["podwire_", "node_ipam_", "leader_"].iter().any(|prefix| name.starts_with(prefix));
    for (name, has_labels) in listed(page, is_metric) {
        match name.strip_suffix('…') {
            None => drop(metrics.insert(name, has_labels)),
            Some(prefix) => {
                metrics.extend(
                    policy_metrics().into_iter().map(|(one, labels)| (format!("{prefix}{one}"), labels)),
                );
            }
        }
    }
    assert!(!metrics.is_empty(), "{page} lists no metrics");
    metrics
}

/// The names in the table of docs/policy.md, which have a common prefix.
fn policy_metrics() -> Documented {
    let text = read("docs/policy.md");
    let table = text.split("| name | meaning |").nth(1).expect("a table of metrics");
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    rows.flat_map(names).collect()
}

fn listed(page: &str, is_metric: impl Fn(&str) -> bool) -> Documented {
    let text = read(page);
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    rows.flat_map(names).filter(|(name, _)| is_metric(name)).collect()
}

/// The code spans of a row's first cell: the names, and whether labels follow.
fn names(row: &str) -> Documented {
    let cell = row.split('|').nth(1).unwrap_or_default();
    let spans = cell.split('`').skip(1).step_by(2);
    let names = spans.map(|span| span.split_once('{').map_or((span, false), |(name, _)| (name, true)));
    names.map(|(name, has_labels)| (name.to_owned(), has_labels)).collect()
}

fn read(page: &str) -> String {
    std::fs::read_to_string(project(page)).expect(page)
}

/// A metric, and the range of its value.
pub type Expected = (&'static str, RangeInclusive<f64>);

/// The metrics of an agent of either mode on a node without problems, with this many pods and other nodes. No policy is
/// there now, but one was.
pub fn of_agent(pods: f64, peers: f64) -> Vec<Expected> {
    let policy = [
        ("podwire_agent_policy_enforced", is(1)),
        ("podwire_agent_policy_policies", is(0)),
        ("podwire_agent_policy_interfaces", is(pods)),
        ("podwire_agent_policy_kernel_objects", at_least(1)),
        ("podwire_agent_policy_changes_total", at_least(1)),
        ("podwire_agent_policy_last_change_seconds", f64::MIN_POSITIVE..=60.0),
        ("podwire_agent_policy_repairs_total", is(0)),
        ("podwire_agent_policy_failures_total", is(0)),
        ("podwire_agent_policy_unguarded_pod", is(0)),
        ("podwire_agent_policy_unmatched_selectors", is(0)),
        // How many there are depends on which pods sent when; `drops_are_counted` looks at them under a policy.
        ("podwire_agent_policy_dropped_packets_total", at_least(0)),
        ("podwire_agent_policy_pod_dropped_packets_total", at_least(0)),
        // The agents run without --policy-cut; the suite `agents` has this metric with it.
        ("podwire_agent_policy_closed_connections_total", is(0)),
    ];
    let node = [
        ("podwire_agent_ready", is(1)),
        ("podwire_agent_peers", is(peers)),
        ("podwire_agent_unreachable_peers", is(0)),
        ("podwire_agent_oversized_pods", is(0)),
        ("podwire_agent_problems", is(0)),
        ("podwire_agent_fast_path_on", is(1)),
        ("podwire_agent_fast_path_pods", is(pods)),
        ("podwire_agent_fast_path_packets_total", at_least(0)),
        ("podwire_agent_fast_path_bytes_total", at_least(0)),
        ("podwire_agent_pod_received_packets_total", at_least(1)),
        ("podwire_agent_pod_sent_packets_total", at_least(1)),
        ("podwire_agent_pod_received_bytes_total", at_least(1)),
        ("podwire_agent_pod_sent_bytes_total", at_least(1)),
    ];
    node.into_iter().chain(policy).collect()
}

/// Waits until the agent of a node counts packets that a policy dropped.
pub fn drops_are_counted(cluster: &Cluster, machine: &Machine) {
    let expected = [
        ("podwire_agent_policy_policies", is(1)),
        ("podwire_agent_policy_dropped_packets_total", at_least(1)),
        ("podwire_agent_policy_pod_dropped_packets_total", at_least(1)),
    ];
    let names = expected.iter().map(|(name, _)| (name.to_string(), false)).collect();
    become_true(cluster, &format!("dropped packets of {}", machine.name), || {
        Some(machine.agent_metrics()?.differences(&names, &expected))
    });
}

/// Waits until there are no differences, and prints those that there were.
#[track_caller]
pub fn become_true(cluster: &Cluster, of: &str, differences: impl Fn() -> Option<Vec<String>>) {
    let mut last = Vec::new();
    cluster.wait(&format!("the metrics ({of}) are true"), || {
        let now = differences().unwrap_or_else(|| vec!["there are none".into()]);
        if now != last {
            println!("{of}: {now:#?}");
        }
        last = now;
        last.is_empty().then_some(())
    });
}

/// An exact value.
pub fn is(value: impl Into<f64>) -> RangeInclusive<f64> {
    let value = value.into();
    value..=value
}

/// A value that is not smaller.
pub fn at_least(value: impl Into<f64>) -> RangeInclusive<f64> {
    value.into()..=f64::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP a_ready Ready.\n# TYPE a_ready gauge\na_ready 1\n# TYPE a_calls counter\n\
        a_calls_total{verb=\"ADD\",why=\"a b\"} 2\na_calls_total{verb=\"DEL\",why=\"\"} 1\n\
        # TYPE a_seconds histogram\na_seconds_sum 0.5\na_seconds_count 4\na_seconds_bucket{le=\"+Inf\"} 4\n# EOF\n";

    #[test]
    fn values_are_compared_with_what_is_expected() {
        let metrics = Metrics::read(TEXT);
        let names = ["a_ready", "a_calls_total", "a_seconds"].map(|name| (name.to_owned(), false));
        let expected = [
            ("a_ready", is(1)),
            ("a_calls_total", is(3)),
            ("a_calls_total{verb=\"ADD\",why=\"a b\"}", is(2)),
            ("a_seconds", at_least(4)),
        ];
        assert_eq!(metrics.differences(&names.clone().into(), &expected), Vec::<String>::new());
        let more = [("a_lost", false), ("a_drops_total", false), ("a_rare_total", true)];
        let more = more.map(|(name, has_labels)| (name.to_owned(), has_labels));
        let more = names.into_iter().chain(more).collect();
        let zero = [("a_ready", is(0)), ("a_drops_total", is(0)), ("a_rare_total", is(0))];
        let found = metrics.differences(&more, &[&expected[1..], &zero].concat());
        let wanted = [
            "a_drops_total is not there",
            "a_lost is not there",
            "the test expects nothing of a_lost",
            "a_ready is 1, not in 0.0..=0.0",
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn the_docs_list_metrics() {
        let flannel = documented("docs/agent-flannel.md");
        assert!(
            flannel.contains_key("podwire_agent_ready")
                && flannel.contains_key("podwire_agent_policy_enforced"),
            "{flannel:?}"
        );
        assert!(!flannel.keys().any(|name| name.contains(['{', '…'])), "{flannel:?}");
        assert!(flannel["podwire_agent_kernel_objects"] && !flannel["podwire_agent_ready"]);
        assert!(documented("docs/controller.md").contains_key("node_ipam_controller_cirdset_max_cidrs"));
    }
}

//! The report of a verification as text: the matrix, what is missing, the failures by pair, and the verdict.

use podwire_verify::{Kind, Report};

use crate::paint::Paint;
use crate::table::table;

/// The limits of the text output.
const MAX_MATRIX: usize = 16;
const MAX_LINES: usize = 40;

/// The matrix, what is missing, the failures and the verdict.
pub(crate) fn text(report: &Report, paint: Paint) -> String {
    let missing: Vec<String> = report.missing.iter().map(ToString::to_string).collect();
    let (failures, denials) = (report.failures_by_pair(), report.denials_by_pair());
    let mut text = matrix(report, paint);
    text += &lines(&paint.bad("missing:"), &missing);
    text += &lines(&paint.bad("failed:"), &failures);
    if let (Some(why), false) = (&report.disturbance, failures.is_empty()) {
        text += &format!("{} {why}\n", paint.bad("but:"));
    }
    text += &lines("denied:", &denials);
    if !(missing.is_empty() && failures.is_empty() && denials.is_empty()) {
        text += "\n";
    }
    let pods = report.endpoints.iter().filter(|endpoint| endpoint.kind == Kind::Pod).count();
    let others = if report.endpoints.len() - pods == 1 { "the node" } else { "the nodes" };
    text + &format!(
        "{}\n{pods} pods and {others}, {} probes by TCP, UDP, ICMP and large packets\n",
        verdict(report, paint),
        report.outcomes.len()
    )
}

/// One line for each text, after its mark. Of many only the first are shown.
fn lines(mark: &str, texts: &[String]) -> String {
    let mut all: String = texts.iter().take(MAX_LINES).map(|text| format!("{mark} {text}\n")).collect();
    if texts.len() > MAX_LINES {
        all += &format!("… and {} more: --json shows all\n", texts.len() - MAX_LINES);
    }
    all
}

fn verdict(report: &Report, paint: Paint) -> String {
    let (failed, denied) = (report.failures().count(), report.denials().count());
    let mut wrong = Vec::new();
    if failed > 0 {
        wrong.push(format!("{failed} packets failed"));
    }
    if !report.missing.is_empty() {
        wrong.push(format!("{} missing", report.missing.len()));
    }
    let denied = if denied > 0 { format!("; policies deny {denied} packets") } else { String::new() };
    if !wrong.is_empty() {
        return format!("{}: {}{denied}", paint.bad("the network model does not hold"), wrong.join(", "));
    }
    if report.outcomes.is_empty() {
        return paint.bad("no packets were sent: the endpoints share no address family");
    }
    if !denied.is_empty() {
        let holds = paint.good("the network model holds where policies allow it");
        return format!("{holds}: no other packet lost, no address translated{denied}");
    }
    format!("{}: no packet lost, no address translated", paint.good("the network model holds"))
}

/// The results by sender (rows) and receiver (columns). Of many endpoints only those with failures are shown.
fn matrix(report: &Report, paint: Paint) -> String {
    let cells = report.matrix();
    let has_failure = |endpoint: &usize| {
        report.failures().any(|outcome| outcome.from == *endpoint || outcome.to == *endpoint)
    };
    let mut shown: Vec<usize> = (0..report.endpoints.len()).collect();
    if shown.len() > MAX_MATRIX {
        shown.retain(has_failure);
        shown.truncate(MAX_MATRIX);
    }
    if shown.is_empty() {
        return String::new();
    }
    let cell = |from: usize, to: usize| match cells.get(&(from, to)) {
        None => "-".to_owned(),
        Some(count) if !count.is_good() => paint.bad(&format!("{}/{}", count.passed, count.sent)),
        Some(count) if count.denied == 0 => paint.good("ok"),
        Some(count) if count.denied == count.sent => "denied".to_owned(),
        Some(count) => format!("{} denied", count.denied),
    };
    let name = |endpoint: usize| report.endpoints[endpoint].name.clone();
    let head: Vec<String> =
        std::iter::once("FROM \\ TO".to_owned()).chain(shown.iter().map(|to| name(*to))).collect();
    let row = |from: &usize| {
        let name = std::iter::once(name(*from));
        name.chain(shown.iter().map(|to| cell(*from, *to))).collect()
    };
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    format!("{}\n", table(&head, &shown.iter().map(row).collect::<Vec<_>>(), paint))
}

#[cfg(test)]
mod tests {
    use podwire_verify::{Missing, Outcome, Protocol, ReportedEndpoint};

    use super::*;

    fn report(results: [Result<(), &str>; 2]) -> Report {
        let outcome = |(to, result): (usize, Result<(), &str>)| Outcome {
            from: 0,
            to,
            source: None,
            address: "10.7.0.3".parse().unwrap(),
            protocol: Protocol::Tcp,
            port: Some(7),
            answered: result.is_ok(),
            result: result.map(|()| Default::default()).map_err(String::from),
            denied: None,
        };
        let endpoint = |name: &str| ReportedEndpoint { name: name.into(), kind: Kind::Pod };
        let mut report = Report {
            endpoints: ["one", "two", "three"].map(endpoint).into(),
            outcomes: (1..).zip(results).map(outcome).collect(),
            missing: Vec::new(),
            disturbance: None,
        };
        report.outcomes[0].denied = Some("ingress of two: isolated".into());
        report
    }

    #[test]
    fn what_is_denied_stands_apart_from_what_is_broken_and_missing() {
        let mut all = report([Err("no answer"), Err("no answer")]);
        all.missing.push(Missing::new("four", Kind::Pod, "its network namespace is gone"));
        let said = text(&all, Paint::plain());
        for line in [
            "missing: pod four: its network namespace is gone",
            "failed: one to three: no answer (10.7.0.3 tcp)",
            "denied: one to two: ingress of two: isolated (10.7.0.3 tcp)",
            "the network model does not hold: 1 packets failed, 1 missing; policies deny 1 packets",
        ] {
            assert!(said.lines().any(|one| one == line), "{line}: {said}");
        }
        assert!(said.contains("denied  0/1"), "{said}");

        let all = report([Err("no answer"), Ok(())]);
        let said = text(&all, Paint::plain());
        assert!(all.holds() && said.contains("the network model holds where policies allow it"), "{said}");
    }
}

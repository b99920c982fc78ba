//! Fields that both kinds of policies have.

use ipnet::IpNet;

use crate::api::{LabelSelector, NamespacedPod};
use crate::rule::{Namespaces, Selection};
use crate::selector::Selector;
use crate::warning::WarningSink;
use crate::WarningKind;

/// A selector; `None` and a warning if it is invalid.
pub(super) fn selector(
    written: &LabelSelector,
    field: &str,
    warnings: &mut WarningSink<'_>,
) -> Option<Selector> {
    warnings.add_unknown(field, &written.unknown);
    for (index, requirement) in written.match_expressions.iter().enumerate() {
        warnings.add_unknown(&format!("{field}.matchExpressions[{index}]"), &requirement.unknown);
    }
    match Selector::parse(written) {
        Ok(selector) => Some(selector),
        Err(reason) => {
            warnings.add(field, WarningKind::Invalid, format!("{reason}: it selects nothing"));
            None
        }
    }
}

/// All pods of the namespaces.
pub(super) fn whole_namespaces(
    written: &LabelSelector,
    field: &str,
    warnings: &mut WarningSink<'_>,
) -> Option<Selection> {
    let namespaces = Namespaces::Labelled(selector(written, field, warnings)?);
    Some(Selection { namespaces, pods: Selector::everything() })
}

/// The selected pods of the selected namespaces.
pub(super) fn namespaced_pods(
    written: &NamespacedPod,
    field: &str,
    warnings: &mut WarningSink<'_>,
) -> Option<Selection> {
    warnings.add_unknown(field, &written.unknown);
    let namespaces = selector(&written.namespace_selector, &format!("{field}.namespaceSelector"), warnings);
    let pods = selector(&written.pod_selector, &format!("{field}.podSelector"), warnings);
    Some(Selection { namespaces: Namespaces::Labelled(namespaces?), pods: pods? })
}

/// A network. The API takes `10.1.2.3/8` for `10.0.0.0/8`, and so does this parser, with a warning.
pub(super) fn network(written: &str, field: &str, warnings: &mut WarningSink<'_>) -> Option<IpNet> {
    let Ok(network) = written.parse::<IpNet>() else {
        warnings.add(field, WarningKind::Invalid, format!("{written:?} is not a network such as 10.0.0.0/8"));
        return None;
    };
    if network != network.trunc() {
        let text = format!("{written} has host bits: it is read as {}", network.trunc());
        warnings.add(field, WarningKind::Suspicious, text);
    }
    Some(network.trunc())
}

/// A valid port number.
pub(super) fn port_number(written: i64) -> Option<u16> {
    u16::try_from(written).ok().filter(|port| *port > 0)
}

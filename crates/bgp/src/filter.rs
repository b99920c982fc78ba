//! `BGPFilter` objects in BIRD's language: a function for each family and direction that has rules.

use ipnet::IpNet;
use podwire_block_ipam::IpFamily;

use crate::model::{Direction, Function};
use crate::names::label;
use crate::objects::{Filter, Rule};

/// The functions of a filter.
pub(crate) fn functions(name: &str, filter: &Filter) -> Result<Vec<Function>, String> {
    let parts = [
        (IpFamily::V4, Direction::Import, &filter.import4),
        (IpFamily::V4, Direction::Export, &filter.export4),
        (IpFamily::V6, Direction::Import, &filter.import6),
        (IpFamily::V6, Direction::Export, &filter.export6),
    ];
    let mut functions = Vec::new();
    for (family, direction, rules) in parts {
        let Some(rules) = rules.as_ref().filter(|rules| !rules.is_empty()) else { continue };
        let verb = match direction {
            Direction::Import => "import",
            Direction::Export => "export",
        };
        let name = format!("filter_{}_{verb}_v{}", label(name), family.digit());
        let statements: Result<Vec<String>, String> =
            rules.iter().map(|rule| statement(rule, family)).collect();
        functions.push(Function { name, family, direction, statements: statements? });
    }
    Ok(functions)
}

/// Whether BIRD takes this as the pattern of an interface's name.
pub(crate) fn is_interface_pattern(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_*?@".contains(&byte))
}

fn statement(rule: &Rule, family: IpFamily) -> Result<String, String> {
    let action = match rule.action.as_str() {
        "Accept" => "accept",
        "Reject" => "reject",
        other => return Err(format!("action {other:?} is neither Accept nor Reject")),
    };
    let mut conditions = Vec::new();
    if let Some(text) = &rule.cidr {
        let cidr: IpNet = text.parse().map_err(|_| format!("cidr {text:?} is not a CIDR"))?;
        if cidr != cidr.trunc() {
            return Err(format!("cidr {text} has host bits: write {}", cidr.trunc()));
        }
        if IpFamily::of_net(cidr) != family {
            return Err(format!("cidr {text} is not {family}"));
        }
        conditions.push(prefix(rule, cidr)?);
    } else if rule.prefix_length.is_some() || rule.match_operator.is_some() {
        return Err("matchOperator and prefixLength need a cidr".into());
    }
    match rule.source.as_deref() {
        None => {}
        Some("RemotePeers") => conditions.push("source = RTS_BGP".into()),
        Some(other) => return Err(format!("source {other:?} is unknown")),
    }
    if let Some(interface) = &rule.interface {
        if !is_interface_pattern(interface) {
            return Err(format!("interface {interface:?} is not a pattern of interface names"));
        }
        conditions.push(format!("ifname ~ \"{interface}\""));
    }
    Ok(match conditions.as_slice() {
        [] => format!("{action};"),
        all => format!("if ({}) then {action};", all.join(" && ")),
    })
}

fn prefix(rule: &Rule, cidr: IpNet) -> Result<String, String> {
    let (own, most) = (cidr.prefix_len(), cidr.max_prefix_len());
    let lengths = rule.prefix_length.map(|lengths| (lengths.min.unwrap_or(own), lengths.max.unwrap_or(most)));
    if lengths.is_some_and(|(min, max)| min > max || max > most) {
        return Err(format!("prefixLength of {cidr} is not a range"));
    }
    let range =
        lengths.map_or_else(|| format!("[ {cidr}+ ]"), |(min, max)| format!("[ {cidr}{{{min},{max}}} ]"));
    match rule.match_operator.as_deref() {
        Some("Equal") => Ok(format!("net = {cidr}")),
        Some("NotEqual") => Ok(format!("net != {cidr}")),
        Some("In") => Ok(format!("net ~ {range}")),
        Some("NotIn") => Ok(format!("net !~ {range}")),
        other => Err(format!("matchOperator {other:?} of {cidr} is unknown")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Object;

    fn rendered(rules: &str) -> Result<Option<String>, String> {
        let text = format!(r#"{{"spec":{{"exportV4":{rules}}}}}"#);
        let filter = serde_json::from_str::<Object<Filter>>(&text).map_err(|error| error.to_string())?;
        let functions = functions("my-filter", &filter.spec)?;
        assert!(functions.iter().all(|one| one.is_for(IpFamily::V4, Direction::Export)));
        Ok(functions.first().map(ToString::to_string))
    }

    #[test]
    fn rules_become_statements() {
        let rules = r#"[
            {"action":"Accept","matchOperator":"In","cidr":"77.0.0.0/16","prefixLength":{"min":18,"max":24},"source":"RemotePeers"},
            {"action":"Reject","matchOperator":"NotIn","cidr":"77.1.0.0/16"},
            {"action":"Reject","interface":"*.calico","matchOperator":"Equal","cidr":"77.2.0.0/16"},
            {"action":"Reject"}]"#;
        let wanted = "function filter_my_filter_export_v4()\n{\n  \
            if (net ~ [ 77.0.0.0/16{18,24} ] && source = RTS_BGP) then accept;\n  \
            if (net !~ [ 77.1.0.0/16+ ]) then reject;\n  \
            if (net = 77.2.0.0/16 && ifname ~ \"*.calico\") then reject;\n  \
            reject;\n}\n";
        assert_eq!(rendered(rules).unwrap().unwrap(), wanted);
        assert_eq!(rendered("[]").unwrap(), None);
    }

    #[test]
    fn a_filter_with_an_unknown_rule_is_rejected() {
        for rules in [
            r#"[{"action":"Allow"}]"#,
            r#"[{"action":"Accept","cidr":"fd00::/8","matchOperator":"In"}]"#,
            r#"[{"action":"Accept","cidr":"10.0.0.0/8","matchOperator":"Near"}]"#,
            r#"[{"action":"Accept","cidr":"10.0.0.0/8","matchOperator":"In","prefixLength":{"min":40}}]"#,
            r#"[{"action":"Accept","interface":"\"; reject; \""}]"#,
            r#"[{"action":"Accept","communities":{"values":["1:2"]}}]"#,
        ] {
            assert!(rendered(rules).is_err(), "{rules}");
        }
    }
}

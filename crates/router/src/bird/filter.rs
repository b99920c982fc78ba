//! Filters, in BIRD's language.

use std::fmt::Write;

use ipnet::IpNet;

use super::names::label;
use super::objects::{Filter, Rule};

/// The function of a filter for one family and one direction; `None` if it has no rules for that.
pub(super) fn function(
    name: &str,
    filter: &Filter,
    v4: bool,
    is_import: bool,
) -> Result<Option<String>, String> {
    let rules = match (v4, is_import) {
        (true, true) => &filter.import4,
        (false, true) => &filter.import6,
        (true, false) => &filter.export4,
        (false, false) => &filter.export6,
    };
    let Some(rules) = rules.as_ref().filter(|rules| !rules.is_empty()) else { return Ok(None) };
    let mut text = format!("function {}()\n{{\n", call(name, v4, is_import));
    for rule in rules {
        let _ = writeln!(text, "  {}", line(rule, v4)?);
    }
    text.push_str("}\n");
    Ok(Some(text))
}

/// Its name in the config.
pub(super) fn call(name: &str, v4: bool, is_import: bool) -> String {
    let (family, direction) = (if v4 { "v4" } else { "v6" }, if is_import { "import" } else { "export" });
    format!("filter_{}_{direction}_{family}", label(name))
}

fn line(rule: &Rule, v4: bool) -> Result<String, String> {
    let action = match rule.action.as_str() {
        "Accept" => "accept",
        "Reject" => "reject",
        other => return Err(format!("action {other:?} is neither Accept nor Reject")),
    };
    let mut conditions = Vec::new();
    if let Some(text) = &rule.cidr {
        let cidr: IpNet = text.parse().map_err(|_| format!("cidr {text:?} is none"))?;
        if cidr != cidr.trunc() {
            return Err(format!("cidr {text} has bits of a host: write {}", cidr.trunc()));
        }
        if cidr.addr().is_ipv4() != v4 {
            return Err(format!("cidr {text} is of the other family"));
        }
        conditions.push(prefix(rule, cidr)?);
    } else if rule.prefix_length.is_some() || rule.match_operator.is_some() {
        return Err("matchOperator and prefixLength need a cidr".into());
    }
    match rule.source.as_deref() {
        None => {}
        Some("RemotePeers") => conditions.push("source = RTS_BGP".into()),
        Some(other) => return Err(format!("source {other:?} is not known")),
    }
    if let Some(interface) = &rule.interface {
        if !interface.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_*?@".contains(&byte)) {
            return Err(format!("interface {interface:?} is no name"));
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
        return Err(format!("prefixLength of {cidr} is no range"));
    }
    let range =
        lengths.map_or_else(|| format!("[ {cidr}+ ]"), |(min, max)| format!("[ {cidr}{{{min},{max}}} ]"));
    match rule.match_operator.as_deref() {
        Some("Equal") => Ok(format!("net = {cidr}")),
        Some("NotEqual") => Ok(format!("net != {cidr}")),
        Some("In") => Ok(format!("net ~ {range}")),
        Some("NotIn") => Ok(format!("net !~ {range}")),
        other => Err(format!("matchOperator {other:?} of {cidr} is not known")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::objects::Object;
    use super::*;

    fn rendered(rules: &str) -> Result<Option<String>, String> {
        let text = format!(r#"{{"spec":{{"exportV4":{rules}}}}}"#);
        let filter = serde_json::from_str::<Object<Filter>>(&text).map_err(|error| error.to_string())?;
        function("my-filter", &filter.spec, true, false)
    }

    #[test]
    fn rules_are_said_in_birds_language() {
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
    fn what_is_not_understood_is_no_filter() {
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

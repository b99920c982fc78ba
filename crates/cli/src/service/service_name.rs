//! The name of a Service on the command line, and the names in the kernel.

use podwire_cni_spec::suggestion::nearest;
use podwire_cni_spec::Error;
use podwire_services::ObjectName;

/// `NAMESPACE/NAME`, or a name in the namespace `default`.
pub(super) fn parse(text: &str) -> Result<ObjectName, Error> {
    let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
    if namespace.is_empty() || name.is_empty() || name.contains('/') {
        let error = Error::env(format!("{text:?} is not the name of a Service"));
        return Err(error.with_details("write NAMESPACE/NAME, or NAME for the namespace default"));
    }
    Ok(ObjectName { namespace: namespace.into(), name: name.into() })
}

/// The Service and the port name of a Service port: `shop/web:http`. In the kernel a very long port name may be cut.
pub(super) fn split(service_port: &str) -> (ObjectName, &str) {
    let (service, port) = service_port.split_once(':').unwrap_or((service_port, ""));
    let (namespace, name) = service.split_once('/').unwrap_or(("", service));
    (ObjectName { namespace: namespace.into(), name: name.into() }, port)
}

/// The error about a name that no Service has, with those that may be meant.
pub(super) fn unknown(name: &ObjectName, known: &[ObjectName]) -> Error {
    let texts: Vec<String> = known.iter().map(ToString::to_string).collect();
    let text = name.to_string();
    let same_name = known.iter().filter(|one| one.name == name.name).map(ToString::to_string);
    let mut meant: Vec<String> = same_name.collect();
    meant.extend(nearest(&text, texts.iter().map(String::as_str)).map(str::to_owned));
    meant.sort();
    meant.dedup();
    let hint = match meant[..] {
        [] => "`podwire service list` shows all Services of this node".to_owned(),
        _ => format!("similar: {}", meant.join(", ")),
    };
    Error::invalid_config(format!("this node serves no Service {text}")).with_details(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_namespace() {
        assert_eq!(parse("shop/web").unwrap().to_string(), "shop/web");
        assert_eq!(parse("web").unwrap().to_string(), "default/web");
        for text in ["", "/web", "shop/", "a/b/c"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(split("shop/web:http"), (parse("shop/web").unwrap(), "http"));
        assert_eq!(split("shop/web"), (parse("shop/web").unwrap(), ""));
    }

    #[test]
    fn similar_names_are_shown() {
        let known = ["shop/web", "shop/db", "test/db"].map(|text| parse(text).unwrap());
        let hint = |text: &str| unknown(&parse(text).unwrap(), &known).details;
        assert_eq!(hint("shop/wbe"), "similar: shop/web");
        assert_eq!(hint("db"), "similar: shop/db, test/db");
        assert!(hint("x/unlike").contains("podwire service list"));
    }
}

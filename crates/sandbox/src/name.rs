//! A pod's name and Kubernetes namespace.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A pod's name and its Kubernetes namespace. Both are DNS names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PodName {
    namespace: String,
    name: String,
}

/// The longest file name.
const MAX_LENGTH: usize = 255;
const MAX_LABEL: usize = 63;

impl PodName {
    /// Checks a name.
    pub fn new(namespace: &str, name: &str) -> Result<PodName, podwire_cni_spec::Error> {
        let fail = |text: String, hint: &str| Err(podwire_cni_spec::Error::env(text).with_details(hint));
        if !is_label(namespace) {
            let hint = "a namespace is made of a-z, 0-9 and -, begins and ends with a letter or digit, and has at most 63";
            return fail(format!("invalid namespace {namespace:?}"), hint);
        }
        if name.is_empty() || !name.split('.').all(is_label) {
            let hint =
                "a pod's name is made of a-z, 0-9, - and ., and begins and ends with a letter or digit";
            return fail(format!("invalid pod name {name:?}"), hint);
        }
        if namespace.len() + name.len() + 1 > MAX_LENGTH {
            return fail(format!("pod name {name:?} is too long"), "at most 255 with its namespace");
        }
        Ok(PodName { namespace: namespace.into(), name: name.into() })
    }

    /// Reads `NAME`, in this namespace, or `NAMESPACE/NAME`.
    pub fn parse(text: &str, namespace: &str) -> Result<PodName, podwire_cni_spec::Error> {
        match text.split_once('/') {
            Some((namespace, name)) => PodName::new(namespace, name),
            None => PodName::new(namespace, text),
        }
    }

    /// The Kubernetes namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The name within it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of the pod's directory, in kubelet's format: `name_namespace`. Neither can contain an underscore.
    pub fn key(&self) -> String {
        format!("{}_{}", self.name, self.namespace)
    }

    /// The pod of such a directory.
    pub(crate) fn of_key(key: &str) -> Option<PodName> {
        let (name, namespace) = key.split_once('_')?;
        PodName::new(namespace, name).ok()
    }
}

fn is_label(text: &str) -> bool {
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    text.len() <= MAX_LABEL
        && is_end(text.chars().next())
        && is_end(text.chars().next_back())
        && text.chars().all(|c| c == '-' || is_end(Some(c)))
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl From<PodName> for String {
    fn from(name: PodName) -> String {
        name.to_string()
    }
}

impl TryFrom<String> for PodName {
    type Error = String;

    fn try_from(text: String) -> Result<PodName, String> {
        PodName::parse(&text, "").map_err(|error| error.msg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_kubernetes_rules() {
        let pod = PodName::parse("web-0.example", "default").unwrap();
        assert_eq!(
            (pod.to_string().as_str(), pod.key().as_str()),
            ("default/web-0.example", "web-0.example_default")
        );
        assert_eq!(PodName::of_key(&pod.key()), Some(pod));
        assert_eq!(PodName::parse("kube-system/dns", "default").unwrap().namespace(), "kube-system");
        for bad in ["", "Web", "-a", "a-", "a_b", "a/b/c", "../x", "a..b", ".", "a b", &"a".repeat(64), "x\n"]
        {
            assert!(PodName::parse(bad, "default").is_err(), "{bad}");
        }
        assert!(PodName::new("", "a").is_err() && PodName::new("a.b", "a").is_err());
        let long = [&*"a".repeat(63); 4].join(".");
        assert!(PodName::new("default", &long).unwrap_err().msg.contains("too long"));
    }
}

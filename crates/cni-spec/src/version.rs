//! The versions of the CNI specification, and what each of them brought.

use std::fmt;

use serde::{de, Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{json, Value};

use crate::{code, json, Error};

/// A released version of the CNI specification. Later versions compare greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Version {
    /// 0.1.0 (2016): ADD and DEL; the result has at most one IPv4 and one IPv6 address.
    V0_1_0,
    /// 0.2.0 (2017): VERSION.
    V0_2_0,
    /// 0.3.0 (2017): chains of plugins, `prevResult`, results with interfaces and many addresses.
    V0_3_0,
    /// 0.3.1 (2017): an editorial fix of 0.3.0.
    V0_3_1,
    /// 0.4.0 (2019): CHECK, and `prevResult` on DEL.
    V0_4_0,
    /// 1.0.0 (2021): lists only; addresses lost their `version` field.
    V1_0_0,
    /// 1.1.0 (2024): GC, STATUS, `cniVersions`, route and interface attributes.
    V1_1_0,
}

impl Version {
    /// Every version, oldest first.
    pub const ALL: &'static [Version] = &[
        Version::V0_1_0,
        Version::V0_2_0,
        Version::V0_3_0,
        Version::V0_3_1,
        Version::V0_4_0,
        Version::V1_0_0,
        Version::V1_1_0,
    ];

    /// The newest version that this crate speaks.
    pub const CURRENT: Version = Version::V1_1_0;

    /// The version with this exact text. Configs older than the field have none, so `""` is 0.1.0.
    pub fn parse(text: &str) -> Option<Version> {
        if text.is_empty() {
            return Some(Version::V0_1_0);
        }
        Version::ALL.iter().copied().find(|version| version.as_str() == text)
    }

    /// The text, for example `"1.1.0"`.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::V0_1_0 => "0.1.0",
            Version::V0_2_0 => "0.2.0",
            Version::V0_3_0 => "0.3.0",
            Version::V0_3_1 => "0.3.1",
            Version::V0_4_0 => "0.4.0",
            Version::V1_0_0 => "1.0.0",
            Version::V1_1_0 => "1.1.0",
        }
    }

    /// All versions from `first` on: what a plugin supports that was born with `first`.
    pub fn from(first: Version) -> &'static [Version] {
        let older = Version::ALL.iter().take_while(|version| **version < first).count();
        &Version::ALL[older..]
    }

    /// Whether a runtime may send CHECK.
    pub fn has_check(self) -> bool {
        self >= Version::V0_4_0
    }

    /// Whether a runtime may send GC.
    pub fn has_gc(self) -> bool {
        self >= Version::V1_1_0
    }

    /// Whether a runtime may send STATUS.
    pub fn has_status(self) -> bool {
        self >= Version::V1_1_0
    }

    /// Whether DEL carries the result of ADD as `prevResult`.
    pub fn has_prev_result_on_del(self) -> bool {
        self >= Version::V0_4_0
    }

    /// The error of a plugin that supports `supported` and got a config of version `asked`.
    pub fn incompatible(asked: &str, supported: &[Version]) -> Error {
        Version::mismatch(asked, "plugin", supported)
    }

    /// [`Version::incompatible`] with the name of the side that complains.
    pub(crate) fn mismatch(asked: &str, side: &str, supported: &[Version]) -> Error {
        let supported: Vec<_> = supported.iter().map(|version| format!("\"{version}\"")).collect();
        Error::new(code::INCOMPATIBLE_VERSION, "incompatible CNI versions")
            .with_details(format!("config is {asked:?}, {side} supports [{}]", supported.join(" ")))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Version::parse(&text).ok_or_else(|| de::Error::custom(format_args!("unknown CNI version {text:?}")))
    }
}

/// A plugin's answer to VERSION.
///
/// The texts stay as the plugin wrote them: a plugin may well support versions newer than this crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionInfo {
    /// The version of the answer itself.
    pub cni_version: String,
    /// Every version whose configs the plugin accepts.
    pub supported: Vec<String>,
}

impl VersionInfo {
    /// The answer of a plugin that supports exactly these versions.
    pub fn new(supported: &[Version]) -> Self {
        VersionInfo {
            cni_version: Version::CURRENT.to_string(),
            supported: supported.iter().map(Version::to_string).collect(),
        }
    }

    /// Whether configs of this version are accepted.
    pub fn supports(&self, version: Version) -> bool {
        self.supported.iter().any(|text| text == version.as_str())
    }

    /// `{"cniVersion": …, "supportedVersions": […]}`.
    pub fn to_json(&self) -> Value {
        json!({ "cniVersion": self.cni_version, "supportedVersions": self.supported })
    }

    /// Reads an answer. Plugins of 0.2.0 may leave the list out and then support 0.1.0 and 0.2.0; for every
    /// other version the list is mandatory.
    pub fn from_json(v: &Value) -> Result<VersionInfo, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Answer {
            #[serde(default)]
            cni_version: String,
            #[serde(default)]
            supported_versions: Vec<String>,
        }
        let decoding = |error: &dyn fmt::Display| Error::decode(format!("decoding version info: {error}"));
        let answer: Answer = json::decode(v).map_err(|error| decoding(&error))?;
        if answer.cni_version.is_empty() {
            return Err(decoding(&"missing field cniVersion"));
        }
        let supported = match (answer.supported_versions, answer.cni_version.as_str()) {
            (list, _) if !list.is_empty() => list,
            (_, "0.2.0") => vec!["0.1.0".to_owned(), "0.2.0".to_owned()],
            _ => return Err(decoding(&"missing field supportedVersions")),
        };
        Ok(VersionInfo { cni_version: answer.cni_version, supported })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_reads_back_and_is_ordered() {
        for version in Version::ALL {
            assert_eq!(Version::parse(&version.to_string()), Some(*version));
        }
        assert!(Version::ALL.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(Version::ALL.last(), Some(&Version::CURRENT));
        assert_eq!(Version::parse(""), Some(Version::V0_1_0));
        for unknown in ["1.1", "1.2.0", "v1.0.0", "1.0.0 ", "0.3.2"] {
            assert_eq!(Version::parse(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_plugin_born_late_supports_the_tail() {
        assert_eq!(Version::from(Version::V0_1_0), Version::ALL);
        assert_eq!(Version::from(Version::V1_0_0), [Version::V1_0_0, Version::V1_1_0]);
    }

    #[test]
    fn verbs_came_with_their_versions() {
        use Version::*;
        let first = |has: fn(Version) -> bool| Version::ALL.iter().copied().find(|version| has(*version));
        assert_eq!(first(Version::has_check), Some(V0_4_0));
        assert_eq!(first(Version::has_prev_result_on_del), Some(V0_4_0));
        assert_eq!(first(Version::has_gc), Some(V1_1_0));
        assert_eq!(first(Version::has_status), Some(V1_1_0));
    }

    #[test]
    fn version_info_goes_out_and_comes_back() {
        let info = VersionInfo::new(Version::from(Version::V0_4_0));
        let text = r#"{"cniVersion":"1.1.0","supportedVersions":["0.4.0","1.0.0","1.1.0"]}"#;
        assert_eq!(info.to_json().to_string(), text);
        assert_eq!(VersionInfo::from_json(&info.to_json()), Ok(info.clone()));
        assert!(info.supports(Version::V1_0_0) && !info.supports(Version::V0_3_1));
    }

    #[test]
    fn only_0_2_0_may_leave_the_list_out() {
        let info = VersionInfo::from_json(&json!({"cniVersion": "0.2.0"})).unwrap();
        assert_eq!(info.supported, ["0.1.0", "0.2.0"]);
        for v in
            [json!({"cniVersion": "0.3.0"}), json!({}), json!({"supportedVersions": ["0.3.0"]}), json!(5)]
        {
            assert_eq!(VersionInfo::from_json(&v).unwrap_err().code, code::DECODE, "{v}");
        }
    }

    #[test]
    fn an_incompatible_version_says_both_sides() {
        let error = Version::incompatible("2.0.0", Version::from(Version::V1_0_0));
        assert_eq!(error.code, code::INCOMPATIBLE_VERSION);
        let text = r#"incompatible CNI versions; config is "2.0.0", plugin supports ["1.0.0" "1.1.0"]"#;
        assert_eq!(error.to_string(), text);
    }
}

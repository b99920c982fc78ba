//! The two groups under which Calico keeps the same objects.

use std::fmt;
use std::str::FromStr;

/// Which custom resources hold the records, as Calico's key `calico_api_group` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ApiGroup {
    /// `crd.projectcalico.org/v1`: what Calico has used since there were custom resources.
    V1,
    /// `projectcalico.org/v3`: what new installations use since Calico 3.33.
    V3,
}

impl ApiGroup {
    /// Its name, which is the objects' `apiVersion` too.
    pub const fn name(self) -> &'static str {
        match self {
            ApiGroup::V1 => "crd.projectcalico.org/v1",
            ApiGroup::V3 => "projectcalico.org/v3",
        }
    }
}

impl fmt::Display for ApiGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ApiGroup {
    type Err = String;

    fn from_str(text: &str) -> Result<ApiGroup, String> {
        let known = [ApiGroup::V1, ApiGroup::V3];
        known.into_iter().find(|group| group.name() == text).ok_or_else(|| {
            format!("{text:?} is no API group of Calico: {} or {}", ApiGroup::V1, ApiGroup::V3)
        })
    }
}

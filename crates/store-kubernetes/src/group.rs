//! The two API groups of Calico's objects.

use std::fmt;
use std::str::FromStr;

/// The API group of the custom resources, as in Calico's configuration key `calico_api_group`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ApiGroup {
    /// `crd.projectcalico.org/v1`: the group of older installations.
    V1,
    /// `projectcalico.org/v3`: the group of new installations since Calico 3.33.
    V3,
}

impl ApiGroup {
    /// The name, which is also the `apiVersion` of objects.
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
            format!("{text:?} is not an API group of Calico: use {} or {}", ApiGroup::V1, ApiGroup::V3)
        })
    }
}

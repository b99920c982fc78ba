//! Objects of which only the needed fields are decoded.
//!
//! A Node object has 10 to 50 KB of images, conditions and `managedFields`, and every report of a kubelet sends all of
//! it to every watcher. Fields that are not selected are skipped in the text: no memory is allocated for them. If only
//! metadata are selected, the server sends nothing else.

use std::borrow::Cow;
use std::fmt::{self, Debug};
use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ApiResource;
use kube::core::DynamicResourceScope;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

/// The fields of an object that are decoded.
#[derive(Clone, Copy, Debug)]
pub enum Fields {
    /// The whole value.
    All,
    /// The fields with these names. Of a list: these fields of every item.
    Only(&'static [(&'static str, Fields)]),
}

/// The fields that a program needs of one kind.
pub trait Selection: Clone + Debug + Send + Sync + 'static {
    /// The fields. A watch needs `name`, `namespace` and `resourceVersion` of the metadata.
    const FIELDS: Fields;
}

/// An object with the fields of a selection, for watches and lists. A value of an unexpected type is kept as it is, so
/// it does not make a list of objects unreadable.
#[derive(Clone, Debug)]
pub struct PartialObject<S> {
    meta: ObjectMeta,
    value: Value,
    selection: PhantomData<S>,
}

impl<S> PartialObject<S> {
    /// The selected fields.
    pub fn into_value(self) -> Value {
        self.value
    }
}

impl<'de, S: Selection> Deserialize<'de> for PartialObject<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PartialObject<S>, D::Error> {
        let value = S::FIELDS.deserialize(deserializer)?;
        if !value.is_object() {
            return Err(D::Error::custom("it is not an object"));
        }
        let text = |field: &str| value["metadata"][field].as_str().map(String::from);
        let meta = ObjectMeta {
            name: text("name"),
            namespace: text("namespace"),
            resource_version: text("resourceVersion"),
            ..ObjectMeta::default()
        };
        Ok(PartialObject { meta, value, selection: PhantomData })
    }
}

impl<S> Serialize for PartialObject<S> {
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        self.value.serialize(serializer)
    }
}

impl<S: Selection> kube::Resource for PartialObject<S> {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(of: &ApiResource) -> Cow<'_, str> {
        of.kind.as_str().into()
    }

    fn group(of: &ApiResource) -> Cow<'_, str> {
        of.group.as_str().into()
    }

    fn version(of: &ApiResource) -> Cow<'_, str> {
        of.version.as_str().into()
    }

    fn api_version(of: &ApiResource) -> Cow<'_, str> {
        of.api_version.as_str().into()
    }

    fn plural(of: &ApiResource) -> Cow<'_, str> {
        of.plural.as_str().into()
    }

    fn metadata_api() -> bool {
        matches!(S::FIELDS, Fields::Only([("metadata", _)]))
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

impl<'de> DeserializeSeed<'de> for Fields {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self {
            Fields::All => Value::deserialize(deserializer),
            Fields::Only(names) => deserializer.deserialize_any(Only(names)),
        }
    }
}

/// Decodes a value; of objects in it, only the fields with these names.
struct Only(&'static [(&'static str, Fields)]);

impl<'de> Visitor<'de> for Only {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(selected) = access.next_key_seed(Name(self.0))? {
            match selected {
                Some((name, fields)) => drop(object.insert(name.to_owned(), access.next_value_seed(fields)?)),
                None => drop(access.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Value::Object(object))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(Fields::Only(self.0))? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }
}

/// Decodes the name of a field; `None` if it is not one of these.
struct Name(&'static [(&'static str, Fields)]);

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Option<(&'static str, Fields)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name {
    type Value = Option<(&'static str, Fields)>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a field name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().find(|(known, _)| *known == name).copied())
    }
}

#[cfg(test)]
mod tests {
    use kube::api::WatchEvent;
    use kube::core::ObjectList;
    use kube::{Resource, ResourceExt};
    use serde_json::json;

    use super::Fields::{All, Only};
    use super::*;

    #[derive(Clone, Debug)]
    struct Selected;

    impl Selection for Selected {
        const FIELDS: Fields = Only(&[
            ("metadata", Only(&[("name", All), ("resourceVersion", All), ("labels", All)])),
            ("spec", Only(&[("containers", Only(&[("ports", All)]))])),
        ]);
    }

    #[test]
    fn only_the_selected_fields_are_decoded() {
        let object = json!({
            "metadata": {"name": "a", "resourceVersion": "7", "labels": {"x": "y"}, "managedFields": [{"time": 1}]},
            "spec": {"nodeName": "n", "containers": [{"image": "i", "ports": [{"containerPort": 80}]}, null, {}]},
            "status": {"name": "a"},
        });
        let event = json!({"type": "MODIFIED", "object": object}).to_string();
        let Ok(WatchEvent::Modified(found)) =
            serde_json::from_str::<WatchEvent<PartialObject<Selected>>>(&event)
        else {
            panic!("a change");
        };
        assert_eq!((found.name_any().as_str(), found.resource_version().as_deref()), ("a", Some("7")));
        let expected = json!({
            "metadata": {"name": "a", "resourceVersion": "7", "labels": {"x": "y"}},
            "spec": {"containers": [{"ports": [{"containerPort": 80}]}, null, {}]},
        });
        assert_eq!(found.into_value(), expected);
    }

    #[test]
    fn a_selection_of_metadata_requests_only_metadata() {
        #[derive(Clone, Debug)]
        struct Name;
        impl Selection for Name {
            const FIELDS: Fields = Only(&[("metadata", Only(&[("name", All)]))]);
        }
        assert!(PartialObject::<Name>::metadata_api() && !PartialObject::<Selected>::metadata_api());
    }

    #[test]
    fn unexpected_types_do_not_make_a_list_unreadable() {
        let items = json!([
            {"metadata": {"name": "a"}, "spec": "text"},
            {"metadata": null, "spec": {"containers": 7}},
            {"spec": {"containers": [[true], -1, 1.5]}},
        ]);
        let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}).to_string();
        let list: ObjectList<PartialObject<Selected>> = serde_json::from_str(&list).unwrap();
        let values = list.items.into_iter().map(PartialObject::into_value).collect();
        assert_eq!(Value::Array(values), items);
        serde_json::from_str::<PartialObject<Selected>>("[]").unwrap_err();
    }
}

//! A serde `Deserializer` over [`Value`] with Go's habits.

use serde::de::value::{BorrowedStrDeserializer, StrDeserializer};
use serde::de::{
    self, DeserializeSeed, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};

use super::decode_error::{wrong_type, DecodeError};
use super::keys::find;

/// A whole number within what a float holds exactly, however it is written.
fn whole(value: &Value) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53
    let float = value.as_number().filter(|n| n.is_f64())?.as_f64()?;
    (float.fract() == 0.0 && float.abs() <= EXACT).then_some(float as i64)
}

/// One value of the document.
#[derive(Clone, Copy)]
pub(super) struct Node<'de>(pub &'de Value);

impl<'de> Node<'de> {
    fn integer<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match (self.0, whole(self.0)) {
            (Value::Null, _) => visitor.visit_u64(0),
            (_, Some(n)) if n < 0 => visitor.visit_i64(n),
            (_, Some(n)) => visitor.visit_u64(n as u64),
            _ => de::Deserializer::deserialize_any(self, visitor),
        }
    }

    fn float<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Null => visitor.visit_f64(0.0),
            _ => de::Deserializer::deserialize_any(self, visitor),
        }
    }

    fn text<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Null => visitor.visit_borrowed_str(""),
            _ => de::Deserializer::deserialize_any(self, visitor),
        }
    }
}

/// Several of serde's methods that do the same.
macro_rules! each {
    ($what:ident: $($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            self.$what(visitor)
        }
    )*};
}

impl<'de> de::Deserializer<'de> for Node<'de> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(b) => visitor.visit_bool(*b),
            Value::Number(n) => match (n.as_u64(), n.as_i64(), n.as_f64()) {
                (Some(n), _, _) => visitor.visit_u64(n),
                (_, Some(n), _) => visitor.visit_i64(n),
                (_, _, n) => visitor.visit_f64(n.unwrap_or(f64::NAN)),
            },
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(items) => visitor.visit_seq(Items { rest: items.iter().enumerate() }),
            Value::Object(object) => visitor.visit_map(Entries { rest: object.iter(), value: None }),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Null => visitor.visit_bool(false),
            _ => self.deserialize_any(visitor),
        }
    }

    each! { integer: deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 }
    each! { integer: deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 }
    each! { float: deserialize_f32 deserialize_f64 }
    each! { text: deserialize_str deserialize_string }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Null => visitor.visit_seq(Items { rest: [].iter().enumerate() }),
            Value::Array(_) => self.deserialize_any(visitor),
            other => Err(wrong_type(other, &"an array")),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::Null => visitor.visit_map(Fields { object: None, names: [].iter(), value: None }),
            Value::Object(_) => self.deserialize_any(visitor),
            other => Err(wrong_type(other, &"an object")),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let object = match self.0 {
            Value::Null => None,
            Value::Object(object) => Some(object),
            other => return Err(wrong_type(other, &"an object")),
        };
        visitor.visit_map(Fields { object, names: fields.iter(), value: None })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self.0 {
            Value::String(variant) => visitor.visit_enum(Variant { name: variant, content: None }),
            Value::Object(object) => match (object.iter().next(), object.len()) {
                (Some((name, content)), 1) => visitor.visit_enum(Variant { name, content: Some(content) }),
                _ => Err(wrong_type(self.0, &"a string or an object with exactly one key")),
            },
            other => Err(wrong_type(other, &"a string or an object with exactly one key")),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        i128 u128 char bytes byte_buf unit unit_struct tuple tuple_struct identifier
    }
}

/// The elements of an array.
struct Items<'de> {
    rest: std::iter::Enumerate<std::slice::Iter<'de, Value>>,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        let Some((index, item)) = self.rest.next() else { return Ok(None) };
        seed.deserialize(Node(item)).map(Some).map_err(|decode_error| decode_error.under_index(index))
    }

    // No size hint: the length is the author's, the allocation would be ours.
}

/// All entries of an object, for maps: every key, as spelled.
struct Entries<'de> {
    rest: serde_json::map::Iter<'de>,
    value: Option<(&'de str, &'de Value)>,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        let Some((key, value)) = self.rest.next() else { return Ok(None) };
        self.value = Some((key, value));
        let named = seed.deserialize(BorrowedStrDeserializer::new(key));
        named.map(Some).map_err(|decode_error: DecodeError| decode_error.under_key(key))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DecodeError> {
        take_value(&mut self.value, seed)
    }
}

/// The entries of an object that a struct asks for, under the struct's own names.
struct Fields<'de> {
    object: Option<&'de Map<String, Value>>,
    names: std::slice::Iter<'static, &'static str>,
    value: Option<(&'de str, &'de Value)>,
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        let Some(object) = self.object else { return Ok(None) };
        for name in self.names.by_ref() {
            if let Some(found) = find(object, name) {
                self.value = Some(found);
                let name: StrDeserializer<'_, DecodeError> = name.into_deserializer();
                return seed.deserialize(name).map(Some);
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DecodeError> {
        take_value(&mut self.value, seed)
    }
}

fn take_value<'de, V: DeserializeSeed<'de>>(
    value: &mut Option<(&'de str, &'de Value)>,
    seed: V,
) -> Result<V::Value, DecodeError> {
    let (key, value) =
        value.take().ok_or_else(|| de::Error::custom("a value was asked for before its key"))?;
    seed.deserialize(Node(value)).map_err(|decode_error| decode_error.under_key(key))
}

/// An externally tagged enum: `"name"`, or `{"name": content}`.
struct Variant<'de> {
    name: &'de str,
    content: Option<&'de Value>,
}

impl<'de> EnumAccess<'de> for Variant<'de> {
    type Error = DecodeError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), DecodeError> {
        let name = seed.deserialize(BorrowedStrDeserializer::new(self.name))?;
        Ok((name, self))
    }
}

impl<'de> Variant<'de> {
    fn content(&self) -> Node<'de> {
        Node(self.content.unwrap_or(&Value::Null))
    }
}

impl<'de> VariantAccess<'de> for Variant<'de> {
    type Error = DecodeError;

    fn unit_variant(self) -> Result<(), DecodeError> {
        match self.content {
            None | Some(Value::Null) => Ok(()),
            Some(other) => Err(wrong_type(other, &"nothing after the name").under_key(self.name)),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, DecodeError> {
        seed.deserialize(self.content()).map_err(|decode_error| decode_error.under_key(self.name))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, DecodeError> {
        let read = de::Deserializer::deserialize_seq(self.content(), visitor);
        read.map_err(|decode_error| decode_error.under_key(self.name))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let read = de::Deserializer::deserialize_struct(self.content(), "", fields, visitor);
        read.map_err(|decode_error| decode_error.under_key(self.name))
    }
}

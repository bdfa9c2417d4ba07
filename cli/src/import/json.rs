//! JSON lines: one object per line.

use super::args::{self, Kind};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;

pub(super) type Object = serde_json::Map<String, Value>;

pub(super) fn object(line: &[u8]) -> Result<Object, String> {
    let once: UniqueObject =
        serde_json::from_slice(line).map_err(|error| format!("not a JSON object: {error}"))?;
    Ok(once.0)
}

/// A JSON object whose names are unique. Objects with duplicate names are rejected as ambiguous.
struct UniqueObject(Object);

impl<'de> Deserialize<'de> for UniqueObject {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<UniqueObject, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = UniqueObject;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueObject, A::Error> {
                let mut object = Object::new();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    if object.contains_key(&name) {
                        return Err(A::Error::custom(format!("duplicate key {name:?}")));
                    }
                    object.insert(name, value);
                }
                Ok(UniqueObject(object))
            }
        }
        from.deserialize_map(Names)
    }
}

/// Retains the id and the values listed in `names` (`old>new` or a name). If `names` is empty,
/// returns the object unchanged.
pub(super) fn renamed(mut object: Object, names: &[String]) -> Object {
    if names.is_empty() {
        return object;
    }
    let mut row = Object::new();
    for (from, to) in names.iter().map(|name| args::renamed(name)) {
        if let Some(value) = object.remove(from) {
            row.insert(to.to_owned(), value);
        }
    }
    if let (false, Some(id)) = (row.contains_key("id"), object.remove("id")) {
        row.insert("id".to_owned(), id);
    }
    row
}

/// Determines the kind of a line from the names of its values.
pub(super) fn kind_of(object: &Object) -> Kind {
    match () {
        () if is_present(object, "member") => Kind::Flags,
        () if is_present(object, "user") => Kind::Events,
        () => Kind::Rows,
    }
}

/// Returns whether the object has a non-null value. Serializers write null for missing values.
pub(super) fn is_present(object: &Object, name: &str) -> bool {
    object.get(name).is_some_and(|value| !value.is_null())
}

pub(super) fn text_of<'o>(object: &'o Object, name: &str) -> Result<Cow<'o, str>, String> {
    match object.get(name) {
        // serde_json parses a number outside 64 bits as a float, which loses digits.
        Some(Value::Number(number)) if number.is_f64() => {
            Err(format!("\"{name}\" is not a 64-bit integer (use a string to keep all digits)"))
        }
        Some(Value::Number(number)) => Ok(Cow::Owned(number.to_string())),
        Some(Value::String(text)) => Ok(Cow::Borrowed(text)),
        None | Some(Value::Null) => Err(format!("\"{name}\" is missing")),
        Some(_) => Err(format!("\"{name}\" is not a number or a string")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_apart_by_their_names() {
        let kind = |line: &str| kind_of(&object(line.as_bytes()).unwrap());
        assert_eq!(kind(r#"{"id": 17, "like": 5}"#), Kind::Rows);
        assert_eq!(kind(r#"{"id": 17, "member": "7"}"#), Kind::Flags);
        assert_eq!(kind(r#"{"user": 7, "id": 17}"#), Kind::Events);
        assert_eq!(kind(r#"{"user": 7, "id": 17, "member": null}"#), Kind::Events);
        assert_eq!(kind(r#"{"user": null, "id": 17, "member": null, "like": 5}"#), Kind::Rows);
        for bad in ["{\"id\": 17, \"id\": 18}", "[1]", "17", "{\"id\": 17", "", "{\"id\": 17} {}"] {
            assert!(object(bad.as_bytes()).unwrap_err().starts_with("not a JSON object"), "{bad}");
        }
    }

    #[test]
    fn numbers_keep_all_their_digits() {
        let line = br#"{"a": 18446744073709551615, "b": "007", "c": 1.5, "d": [], "f": null}"#;
        let object = object(line).unwrap();
        let text = |name| text_of(&object, name).map(Cow::into_owned);
        assert_eq!(text("a").unwrap(), "18446744073709551615");
        assert_eq!(text("b").unwrap(), "007");
        assert_eq!(
            text("c").unwrap_err(),
            "\"c\" is not a 64-bit integer (use a string to keep all digits)"
        );
        assert_eq!(text("d").unwrap_err(), "\"d\" is not a number or a string");
        assert_eq!(text("e").unwrap_err(), "\"e\" is missing");
        assert_eq!(text("f").unwrap_err(), "\"f\" is missing");
    }
}

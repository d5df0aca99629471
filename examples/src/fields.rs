//! The fields of JSON objects that files hold.

use anyhow::{Result, anyhow};
use serde_json::{Map, Value};

/// A field as `read` reads it, such as `serde_json::from_value`; `None` where it is missing or
/// null.
///
/// # Errors
/// What `read` says, behind the field's name.
pub fn field<T>(
    fields: &Map<String, Value>,
    name: &str,
    read: fn(Value) -> serde_json::Result<T>,
) -> Result<Option<T>> {
    let value = fields.get(name).filter(|value| !value.is_null()).cloned();
    value.map(read).transpose().map_err(|error| anyhow!("{name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    #[test]
    fn an_error_names_the_field_what_came_and_what_should() {
        let fields = Map::from_iter([("seed".to_owned(), json!("x")), ("id".to_owned(), json!(7))]);
        let error = field(&fields, "seed", from_value::<u64>).unwrap_err();
        assert_eq!(error.to_string(), "seed: invalid type: string \"x\", expected u64");
        assert_eq!(field(&fields, "id", from_value::<u64>).unwrap(), Some(7));
        assert_eq!(field(&fields, "stop", from_value::<u64>).unwrap(), None);
    }
}

//! How much longer JSON may get when it is pretty-printed.

use serde_json::Value;

use crate::error::{Error, Result};

/// The most levels of all values of a field together. A value as deep as that gets a line with as
/// many indents, so that without a bound a request of megabytes is a prompt of gigabytes. No
/// context holds so many values: each is a token at least, and real ones lie some ten levels deep.
const MOST_LEVELS: usize = 1_000_000;

/// Refuses a field of a request whose values, each counted once for each level that it lies deep,
/// are too many.
pub(crate) fn check<'a>(
    field: &'static str,
    values: impl IntoIterator<Item = &'a Value>,
) -> Result<()> {
    let got = values.into_iter().map(|value| levels(value, 1)).sum();
    let expected = MOST_LEVELS;
    if got > expected { Err(Error::Levels { field, got, expected }) } else { Ok(()) }
}

/// The levels of a value at this one, and of all values in it.
fn levels(value: &Value, level: usize) -> usize {
    let inner = |value| levels(value, level + 1);
    level
        + match value {
            Value::Array(values) => values.iter().map(inner).sum(),
            Value::Object(fields) => fields.values().map(inner).sum(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_value_counts_once_for_each_level_that_it_lies_deep() {
        assert_eq!(levels(&json!(null), 1), 1);
        assert_eq!(levels(&json!({"a": [1, {"b": 2}], "c": "d"}), 1), 1 + 2 + 2 + 3 + 3 + 4);
    }

    #[test]
    fn what_has_too_many_levels_is_told_with_its_field() {
        let list = |values: usize| Value::from(vec![0; values]);
        assert!(check("tools", [&list(249_999), &list(249_999)]).is_ok());
        let error = check("tools", [&list(250_000), &list(250_000)]).unwrap_err();
        let said = "tools: got values of 1000002 levels in all, expected at most 1000000";
        assert_eq!(error.to_string(), said);
    }
}

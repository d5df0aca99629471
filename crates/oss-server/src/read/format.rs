//! What an answer has to look like: `response_format`, and `text.format` of responses.

use oss_engine::{Grammar, ResponseFormat};
use serde_json::{Map, Value};

use crate::read::fields::{Fields, short};
use crate::refusal::Refusal;

/// Where a format of the type `json_schema` has its schema.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Nesting {
    /// In an object `json_schema` of its own, as chat completions write it.
    Nested,
    /// In the format itself, as responses write it.
    Flat,
}

/// What an answer has to look like.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Format {
    /// What holds it to that.
    pub(crate) grammar: Grammar,
    /// What the model is told of it, in chats; nothing of "any JSON object".
    pub(crate) told: Option<ResponseFormat>,
}

/// The format that came as the field `name`; `None`: any text. What a schema says is not looked at.
///
/// # Errors
/// Another type of format, no schema, a field of another type.
pub(crate) fn read(
    name: &str,
    format: Option<Map<String, Value>>,
    nesting: Nesting,
) -> Result<Option<Format>, Refusal> {
    let Some(format) = format else { return Ok(None) };
    let mut format = Fields::within(name, format);
    let kind: Value = format.need("type")?;
    // Other servers take a schema so, which is in the format itself on every path.
    let has_schema = format.look("schema").is_some_and(|schema| !is_empty(schema));
    match kind.as_str() {
        Some("text") => return Ok(None),
        Some("json_object") if has_schema => {}
        Some("json_object") => {
            return Ok(Some(Format { grammar: Grammar::json_object(), told: None }));
        }
        Some("json_schema") if nesting == Nesting::Flat => {}
        Some("json_schema") => {
            format = Fields::within(&format!("{name}.json_schema"), format.need("json_schema")?);
        }
        _ => {
            let expected = "text, json_object or json_schema";
            return Err(Refusal::unsupported(format!("{name}.type"), short(&kind), expected));
        }
    }
    // A schema is held whole or refused, whether it is strict or not.
    format.take::<bool>("strict")?;
    let name: Option<String> = format.take("name")?;
    let description = format.take("description")?;
    let schema: Value = format.need("schema")?;
    let grammar = Grammar::json_schema(schema.clone());
    let name = name.unwrap_or_else(|| "answer".to_owned());
    Ok(Some(Format { grammar, told: Some(ResponseFormat { name, description, schema }) }))
}

/// Whether a schema says nothing.
fn is_empty(schema: &Value) -> bool {
    schema.is_null() || schema.as_object().is_some_and(Map::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(format: &Value, nesting: Nesting) -> Result<Option<Format>, Refusal> {
        super::read("f", format.as_object().cloned(), nesting)
    }

    #[test]
    fn both_shapes_of_a_schema_are_read() {
        let schema = json!({"type": "object"});
        let flat = json!({"type": "json_schema", "name": "x", "strict": true, "schema": schema});
        let nested = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        let grammar = Grammar::json_object();
        let (name, description) = ("x".to_owned(), None);
        let told = Some(ResponseFormat { name, description, schema });
        let expected = Some(Format { grammar: grammar.clone(), told });
        assert_eq!(read(&flat, Nesting::Flat).unwrap(), expected);
        assert_eq!(read(&nested, Nesting::Nested).unwrap(), expected);
        for nesting in [Nesting::Flat, Nesting::Nested] {
            let beside = json!({"type": "json_object", "name": "x", "schema": {"type": "object"}});
            assert_eq!(read(&beside, nesting).unwrap(), expected);
        }
        let any = Some(Format { grammar, told: None });
        let empty = json!({"type": "json_object", "schema": {}});
        assert_eq!(read(&empty, Nesting::Nested).unwrap(), any);
        assert_eq!(read(&json!({"type": "json_object"}), Nesting::Flat).unwrap(), any);
        assert_eq!(read(&json!({"type": "text"}), Nesting::Nested).unwrap(), None);
        assert_eq!(read(&Value::Null, Nesting::Nested).unwrap(), None);
    }

    #[test]
    fn what_is_wrong_is_named_by_its_whole_path() {
        let table = [
            (json!({}), "f.type"),
            (json!({"type": "xml"}), "f.type"),
            (json!({"type": "json_schema"}), "f.json_schema"),
            (json!({"type": "json_schema", "json_schema": 3}), "f.json_schema"),
            (json!({"type": "json_schema", "json_schema": {}}), "f.json_schema.schema"),
            (
                json!({"type": "json_schema", "json_schema": {"strict": 1, "schema": {}}}),
                "f.json_schema.strict",
            ),
        ];
        for (format, param) in table {
            let refusal = read(&format, Nesting::Nested).unwrap_err();
            assert_eq!(refusal.param.as_deref(), Some(param), "{format}");
            assert!(refusal.message.starts_with(&format!("{param}: ")), "{}", refusal.message);
        }
        let flat = read(&json!({"type": "json_schema"}), Nesting::Flat).unwrap_err();
        assert_eq!(flat.param.as_deref(), Some("f.schema"));
    }
}

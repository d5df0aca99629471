//! A JSON object read field by field, so that an error names the field it is about.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::refusal::Refusal;

/// What is left of a request's object.
pub(crate) struct Fields {
    left: Map<String, Value>,
    /// The way to the object within the request, for errors.
    prefix: String,
}

impl Fields {
    /// The fields of an object that is part of a request.
    pub(crate) fn of(object: Map<String, Value>) -> Self {
        Self { left: object, prefix: String::new() }
    }

    /// The fields of the object that came as the field `name`, which errors then name as well.
    pub(crate) fn within(name: &str, object: Map<String, Value>) -> Self {
        Self { left: object, prefix: format!("{name}.") }
    }

    fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Reads a body.
    ///
    /// # Errors
    /// When it is no JSON object.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Refusal> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self::of(fields)),
            Ok(other) => Err(Refusal::invalid(format!(
                "body: got {}, expected a JSON object",
                kind_of(&other)
            ))),
            Err(error) => Err(Refusal::invalid(format!("body: not JSON: {error}"))),
        }
    }

    /// A field as it came.
    pub(crate) fn look(&self, name: &str) -> Option<&Value> {
        self.left.get(name)
    }

    /// A field that is left and not null.
    pub(crate) fn first(&self) -> Option<(&str, &Value)> {
        let mut left = self.left.iter().filter(|(_, value)| !value.is_null());
        left.next().map(|(name, value)| (name.as_str(), value))
    }

    /// Takes a field; `None` where it is missing or null.
    ///
    /// # Errors
    /// When it is of another type.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, Refusal> {
        match self.left.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => read(&self.path(name), value).map(Some),
        }
    }

    /// Takes a field that has to be there.
    ///
    /// # Errors
    /// When it is missing, null or of another type.
    pub(crate) fn need<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, Refusal> {
        self.take(name)?.ok_or_else(|| missing(&self.path(name)))
    }

    /// Takes a list whose elements are read one by one; `None` where it is missing or null.
    ///
    /// # Errors
    /// When it is no list, or an element is of another type: the error names which.
    pub(crate) fn list<T: DeserializeOwned>(
        &mut self,
        name: &str,
    ) -> Result<Option<Vec<T>>, Refusal> {
        let Some(values) = self.take::<Vec<Value>>(name)? else { return Ok(None) };
        let (values, path) = (values.into_iter().enumerate(), self.path(name));
        let one = |(index, value)| read(&format!("{path}[{index}]"), value);
        values.map(one).collect::<Result<_, _>>().map(Some)
    }

    /// Takes a field that is the same as left out when it is one of `accepted`.
    ///
    /// # Errors
    /// When it is anything else: this server does not do it.
    pub(crate) fn refuse(&mut self, name: &str, accepted: &[Value]) -> Result<(), Refusal> {
        match self.left.remove(name) {
            None | Some(Value::Null) => Ok(()),
            Some(value) if accepted.contains(&value) => Ok(()),
            Some(value) => {
                let expected: Vec<_> = accepted.iter().map(Value::to_string).collect();
                let expected = match expected.is_empty() {
                    true => "the field to be left out: this server does not support it".to_owned(),
                    false => expected.join(" or "),
                };
                Err(Refusal::unsupported(self.path(name), short(&value), &expected))
            }
        }
    }
}

/// Reads a value, naming it in the error.
pub(crate) fn read<T: DeserializeOwned>(name: &str, value: Value) -> Result<T, Refusal> {
    serde_json::from_value(value).map_err(|error| Refusal::field(name, error))
}

pub(crate) fn missing(name: &str) -> Refusal {
    Refusal::field(name, "got nothing, expected the field to be there")
}

/// A value as it is, cut where it is long.
pub(crate) fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_field_what_came_and_what_should() {
        let mut fields = Fields::parse(br#"{"n":"two","f":{"a":1},"l":["x",3],"z":null}"#).unwrap();
        let n = fields.take::<u32>("n").unwrap_err();
        assert_eq!(n.to_string(), "n: invalid type: string \"two\", expected u32");
        let f = fields.refuse("f", &[]).unwrap_err();
        assert!(f.to_string().starts_with("f: got {\"a\":1}, expected the field to be left out"));
        assert_eq!(fields.list::<String>("l").unwrap_err().param.as_deref(), Some("l[1]"));
        assert_eq!(fields.take::<u32>("z").unwrap(), None);
        assert_eq!(fields.need::<u32>("y").unwrap_err().param.as_deref(), Some("y"));
        assert!(Fields::parse(b"[1]").is_err());
    }
}

//! JSON as Python writes it.

use std::fmt::Write as _;

use serde_json::{Map, Value};

/// `json.dumps(value, ensure_ascii=False)`: a space after `,` and `:`, nothing but what JSON
/// demands is escaped.
pub(super) fn to_json(value: &Value) -> String {
    Style::default().write(value)
}

/// The options of Python's `json.dumps` that templates use.
#[derive(Clone, Debug, Default)]
pub(super) struct Style {
    /// Spaces for each level; `None` writes one line.
    pub(super) indent: Option<usize>,
    /// Between values, and after a key.
    pub(super) separators: Option<(String, String)>,
    pub(super) sort_keys: bool,
    pub(super) ensure_ascii: bool,
}

impl Style {
    pub(super) fn write(&self, value: &Value) -> String {
        let mut out = String::new();
        self.value(&mut out, value, 1);
        out
    }

    fn value(&self, out: &mut String, value: &Value, depth: usize) {
        match value {
            Value::Null => out.push_str("null"),
            Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
                Some(float) => out.push_str(&python_float(float)),
                None => out.push_str(&number.to_string()),
            },
            Value::String(text) => self.string(out, text),
            Value::Array(values) => {
                out.push('[');
                for (place, value) in values.iter().enumerate() {
                    self.break_line(out, place, depth);
                    self.value(out, value, depth + 1);
                }
                self.close(out, values.is_empty(), depth);
                out.push(']');
            }
            Value::Object(fields) => self.object(out, fields, depth),
        }
    }

    fn object(&self, out: &mut String, fields: &Map<String, Value>, depth: usize) {
        let mut sorted: Vec<(&String, &Value)> = fields.iter().collect();
        if self.sort_keys {
            sorted.sort_by_key(|field| field.0);
        }
        out.push('{');
        for (place, (name, value)) in sorted.into_iter().enumerate() {
            self.break_line(out, place, depth);
            self.string(out, name);
            out.push_str(self.separators.as_ref().map_or(": ", |(_, key)| key));
            self.value(out, value, depth + 1);
        }
        self.close(out, fields.is_empty(), depth);
        out.push('}');
    }

    /// What stands before a value inside brackets.
    fn break_line(&self, out: &mut String, place: usize, depth: usize) {
        if place > 0 {
            let plain = if self.indent.is_some() { "," } else { ", " };
            out.push_str(self.separators.as_ref().map_or(plain, |(item, _)| item));
        }
        self.line(out, depth);
    }

    fn close(&self, out: &mut String, empty: bool, depth: usize) {
        if !empty {
            self.line(out, depth - 1);
        }
    }

    fn line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = self.indent {
            let _ = write!(out, "\n{:width$}", "", width = indent * depth);
        }
    }

    fn string(&self, out: &mut String, text: &str) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\0'..='\u{1f}' => escape(out, character),
                _ if self.ensure_ascii && !character.is_ascii() => escape(out, character),
                _ => out.push(character),
            }
        }
        out.push('"');
    }
}

/// `\uXXXX`, twice beyond the first plane.
fn escape(out: &mut String, character: char) {
    for unit in character.encode_utf16(&mut [0; 2]) {
        let _ = write!(out, "\\u{unit:04x}");
    }
}

/// Python writes `1e+16` and `1e-05` where Rust writes `1e16` and `1e-5`; both write the shortest
/// digits that read back the same.
fn python_float(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').expect("`{:e}` writes an exponent");
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = format!("{value}");
    if text.contains('.') { text } else { text + ".0" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_written_as_python_does() {
        let value = json!({"a": [1, 2.5, null, true], "é": "<\"&\n\u{7f}\u{1}", "e": {}, "f": []});
        let expected = "{\"a\": [1, 2.5, null, true], \"é\": \"<\\\"&\\n\u{7f}\\u0001\", \
                        \"e\": {}, \"f\": []}";
        assert_eq!(to_json(&value), expected);
    }

    #[test]
    fn every_style_is_written_as_python_does() {
        let value = json!({"b": [1, {"x": "é🚀"}], "a": {}});
        let style = Style { indent: Some(2), ..Style::default() };
        let expected =
            "{\n  \"b\": [\n    1,\n    {\n      \"x\": \"é🚀\"\n    }\n  ],\n  \"a\": {}\n}";
        assert_eq!(style.write(&value), expected);
        let style = Style { sort_keys: true, ensure_ascii: true, ..Style::default() };
        let expected = r#"{"a": {}, "b": [1, {"x": "\u00e9\ud83d\ude80"}]}"#;
        assert_eq!(style.write(&value), expected);
        let separators = Some((",".to_owned(), ":".to_owned()));
        let style = Style { separators, ..Style::default() };
        assert_eq!(style.write(&value), r#"{"b":[1,{"x":"é🚀"}],"a":{}}"#);
    }

    #[test]
    fn floats_are_written_as_python_does() {
        let cases = [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1.5e-5, "1.5e-05"),
            (1e-4, "0.0001"),
            (123_456_789_012_345.6, "123456789012345.6"),
            (1e300, "1e+300"),
        ];
        for (value, text) in cases {
            assert_eq!(python_float(value), text);
        }
    }
}

//! JSON as Python writes it.

use std::io;

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{CharEscape, Formatter, PrettyFormatter, Serializer};

/// `json.dumps(value, ensure_ascii=False)`: a space after `,` and `:`, nothing but what JSON
/// demands is escaped.
pub fn to_json(value: &Value) -> String {
    write(value, Separators)
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`.
pub(super) fn to_json_indented(value: &Value, indent: usize) -> String {
    let indent = " ".repeat(indent);
    write(value, PrettyFormatter::with_indent(indent.as_bytes()))
}

fn write(value: &Value, formatter: impl Formatter) -> String {
    let mut bytes = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut bytes, PythonEscapes(formatter));
    value.serialize(&mut serializer).expect("a JSON value is written to memory");
    String::from_utf8(bytes).expect("JSON text is UTF-8")
}

/// `", "` and `": "`.
struct Separators;

impl Formatter for Separators {
    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

/// The inner formatter, with floats as Python's `repr` writes them.
struct PythonEscapes<F>(F);

impl<F: Formatter> Formatter for PythonEscapes<F> {
    fn write_f64<W: ?Sized + io::Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(python_float(value).as_bytes())
    }

    fn write_char_escape<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        self.0.write_char_escape(out, escape)
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_array(out)
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array(out)
    }

    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_array_value(out, first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array_value(out)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
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
        let expected = "{\"a\": [1, 2.5, null, true], \"é\": \"<\\\"&\\n\u{7f}\\u0001\", \"e\": {}, \"f\": []}";
        assert_eq!(to_json(&value), expected);
        let expected = "{\n  \"a\": [\n    1\n  ],\n  \"e\": {}\n}";
        assert_eq!(to_json_indented(&json!({"a": [1], "e": {}}), 2), expected);
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
            (123456789012345.6, "123456789012345.6"),
            (1e300, "1e+300"),
        ];
        for (value, text) in cases {
            assert_eq!(python_float(value), text);
        }
    }
}

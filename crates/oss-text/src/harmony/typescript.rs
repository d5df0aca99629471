//! JSON schemas as the TypeScript types that the models were trained to read.

use std::collections::HashSet;
use std::fmt::Write as _;

use serde_json::Value;

/// Writes the type of a schema; lines after the first begin with `indent`.
///
/// The layout, its oddities included (an object's description stands between the property's
/// name and the brace), is the reference library's: the prompt has to be the one that the model
/// knows. Schemas that the format has no words for (`anyOf`, `$ref`, …) become `any`.
pub(super) fn write_type(out: &mut String, schema: &Value, indent: &str) {
    if let Some(variants) = array(schema, "oneOf") {
        return write_union(out, variants, indent);
    }
    if let Some(types) = array(schema, "type") {
        let names: Vec<&str> = types.iter().filter_map(Value::as_str).map(basic).collect();
        if !names.is_empty() {
            *out += &names.join(" | ");
            return;
        }
    }
    match text(schema, "type") {
        Some("object") => write_object(out, schema, indent),
        Some("string") if choices(schema).next().is_some() => {
            for (place, choice) in choices(schema).enumerate() {
                let mark = if place == 0 { "" } else { " | " };
                let _ = write!(out, "{mark}\"{choice}\"");
            }
        }
        Some("array") => match schema.get("items") {
            Some(items) => {
                write_type(out, items, indent);
                *out += "[]";
            }
            None => *out += "Array<any>",
        },
        Some(name @ ("string" | "number" | "integer" | "boolean")) => *out += basic(name),
        _ => *out += "any",
    }
}

fn array<'a>(schema: &'a Value, key: &str) -> Option<&'a Vec<Value>> {
    schema.get(key).and_then(Value::as_array)
}

fn text<'a>(schema: &'a Value, key: &str) -> Option<&'a str> {
    schema.get(key).and_then(Value::as_str)
}

fn basic(name: &str) -> &str {
    if name == "integer" { "number" } else { name }
}

/// The strings of an `enum`.
fn choices(schema: &Value) -> impl Iterator<Item = &str> {
    array(schema, "enum").into_iter().flatten().filter_map(Value::as_str)
}

/// `default: …`: a string is quoted unless the schema lists its values.
fn default(schema: &Value) -> Option<String> {
    let value = schema.get("default")?;
    let listed = array(schema, "enum").is_some_and(|values| !values.is_empty());
    Some(match value.as_str() {
        Some(value) if listed => format!("default: {value}"),
        Some(value) => format!("default: \"{value}\""),
        None => format!("default: {value}"),
    })
}

/// Writes the type, with `null` where the schema allows it.
fn write_nullable_type(out: &mut String, schema: &Value, indent: &str) {
    let start = out.len();
    write_type(out, schema, indent);
    let nullable = schema.get("nullable").and_then(Value::as_bool).unwrap_or(false);
    if nullable && !out[start..].contains("null") {
        *out += " | null";
    }
}

/// Writes a union that is not a property's: one variant on each line.
fn write_union(out: &mut String, variants: &[Value], indent: &str) {
    for variant in variants {
        let _ = write!(out, "\n{indent} | ");
        write_nullable_type(out, variant, &format!("{indent}   "));
        // Here the reference quotes a listed default.
        let default = match (default(variant), text(variant, "default")) {
            (Some(_), Some(_)) if choices(variant).next().is_some() => {
                Some(format!("default: {}", variant["default"]))
            }
            (default, _) => default,
        };
        write_comment(out, text(variant, "description"), default.as_deref());
    }
}

fn write_comment(out: &mut String, description: Option<&str>, default: Option<&str>) {
    for (place, note) in description.into_iter().chain(default).enumerate() {
        let mark = if place == 0 { " // " } else { " " };
        let _ = write!(out, "{mark}{note}");
    }
}

fn write_object(out: &mut String, schema: &Value, indent: &str) {
    if let Some(description) = text(schema, "description") {
        let _ = writeln!(out, "{indent}// {description}");
    }
    *out += "{\n";
    let required: HashSet<&str> =
        array(schema, "required").into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let mark = if required.contains(name.as_str()) { "" } else { "?" };
        write_property(out, &format!("{name}{mark}"), property, indent);
    }
    *out += indent;
    *out += "}";
}

fn write_property(out: &mut String, name: &str, property: &Value, indent: &str) {
    if let Some(title) = text(property, "title") {
        let _ = write!(out, "{indent}// {title}\n{indent}//\n");
    }
    let is_union = property.get("oneOf").is_some();
    if let Some(description) = text(property, "description").filter(|_| !is_union) {
        let _ = writeln!(out, "{indent}// {description}");
    }
    if let Some(examples) = array(property, "examples").filter(|examples| !examples.is_empty()) {
        let _ = writeln!(out, "{indent}// Examples:");
        for example in examples.iter().filter_map(Value::as_str) {
            let _ = writeln!(out, "{indent}// - \"{example}\"");
        }
    }
    if let Some(variants) = array(property, "oneOf") {
        write_union_property(out, name, (property, variants), indent);
        return;
    }
    let _ = write!(out, "{indent}{name}: ");
    write_nullable_type(out, property, &format!("{indent}    "));
    out.push(',');
    write_comment(out, None, default(property).filter(|_| !is_union).as_deref());
    out.push('\n');
}

/// Writes a property that is a union: one variant on each line below its name.
fn write_union_property(out: &mut String, name: &str, union: (&Value, &[Value]), indent: &str) {
    let (property, variants) = union;
    let description = text(property, "description");
    let first = variants.first().and_then(|variant| text(variant, "description"));
    let above = description.filter(|_| first != description);
    if let Some(description) = above {
        let _ = writeln!(out, "{indent}// {description}");
    }
    if let Some(default) = default(property) {
        let _ = writeln!(out, "{indent}// {default}");
    }
    let _ = writeln!(out, "{indent}{name}:");
    for (place, variant) in variants.iter().enumerate() {
        let _ = write!(out, "{indent} | ");
        write_nullable_type(out, variant, &format!("{indent}   "));
        let said = place == 0 && above.is_some();
        let own = text(variant, "description").filter(|&own| !said && Some(own) != description);
        write_comment(out, own, default(variant).as_deref());
        out.push('\n');
    }
    let _ = writeln!(out, "{indent},");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    use serde_json::{Map, json};

    #[test]
    fn thousands_of_properties_that_are_required_take_no_time() {
        let names = || (0..60_000).map(|number| format!("p{number}"));
        let properties: Map<String, Value> = names().map(|name| (name, json!(true))).collect();
        let required: Vec<String> = names().collect();
        let schema = json!({"type": "object", "properties": properties, "required": required});
        let begin = Instant::now();
        let mut out = String::new();
        write_type(&mut out, &schema, "");
        assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
        assert!(out.starts_with("{\np0: any,\n") && out.ends_with("p59999: any,\n}"));
    }
}

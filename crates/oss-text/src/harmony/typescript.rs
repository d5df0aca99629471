//! JSON schemas as the TypeScript types that the models were trained to read.

use std::fmt::Write as _;

use serde_json::Value;

/// The type of a schema; lines after the first begin with `indent`.
///
/// The layout, its oddities included (an object's description stands between the property's
/// name and the brace), is the reference library's: the prompt has to be the one that the model
/// knows. Schemas that the format has no words for (`anyOf`, `$ref`, …) become `any`.
pub(super) fn type_of(schema: &Value, indent: &str) -> String {
    if let Some(variants) = array(schema, "oneOf") {
        return union(variants, indent);
    }
    if let Some(types) = array(schema, "type") {
        let names: Vec<&str> = types.iter().filter_map(Value::as_str).map(basic).collect();
        if !names.is_empty() {
            return names.join(" | ");
        }
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("object") => object(schema, indent),
        Some("string") => match choices(schema) {
            choices if choices.is_empty() => "string".to_owned(),
            choices => choices.join(" | "),
        },
        Some("array") => match schema.get("items") {
            Some(items) => type_of(items, indent) + "[]",
            None => "Array<any>".to_owned(),
        },
        Some(name @ ("number" | "integer" | "boolean")) => basic(name).to_owned(),
        _ => "any".to_owned(),
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

/// The quoted strings of an `enum`.
fn choices(schema: &Value) -> Vec<String> {
    let quoted = |value: &Value| value.as_str().map(|value| format!("\"{value}\""));
    array(schema, "enum").into_iter().flatten().filter_map(quoted).collect()
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

/// The type, with `null` where the schema allows it.
fn nullable_type_of(schema: &Value, indent: &str) -> String {
    let mut name = type_of(schema, indent);
    let nullable = schema.get("nullable").and_then(Value::as_bool).unwrap_or(false);
    if nullable && !name.contains("null") {
        name += " | null";
    }
    name
}

/// A union that is not a property's: one variant on each line.
fn union(variants: &[Value], indent: &str) -> String {
    let mut out = String::new();
    for variant in variants {
        let name = nullable_type_of(variant, &format!("{indent}   "));
        let _ = write!(out, "\n{indent} | {name}");
        // Here the reference quotes a listed default.
        let default = match (default(variant), text(variant, "default")) {
            (Some(_), Some(_)) if !choices(variant).is_empty() => {
                Some(format!("default: {}", variant["default"]))
            }
            (default, _) => default,
        };
        comment(&mut out, text(variant, "description").map(str::to_owned), default);
    }
    out
}

fn comment(out: &mut String, description: Option<String>, default: Option<String>) {
    let notes: Vec<String> = description.into_iter().chain(default).collect();
    if !notes.is_empty() {
        let _ = write!(out, " // {}", notes.join(" "));
    }
}

fn object(schema: &Value, indent: &str) -> String {
    let mut out = String::new();
    if let Some(description) = text(schema, "description") {
        let _ = writeln!(out, "{indent}// {description}");
    }
    out += "{\n";
    let required: Vec<&str> =
        array(schema, "required").into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let mark = if required.contains(&name.as_str()) { "" } else { "?" };
        write_property(&mut out, &format!("{name}{mark}"), property, indent);
    }
    out + indent + "}"
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
        write_union(out, name, (property, variants), indent);
        return;
    }
    let kind = nullable_type_of(property, &format!("{indent}    "));
    let _ = write!(out, "{indent}{name}: {kind},");
    comment(out, None, default(property).filter(|_| !is_union));
    out.push('\n');
}

/// A property that is a union: one variant on each line below its name.
fn write_union(out: &mut String, name: &str, union: (&Value, &[Value]), indent: &str) {
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
        let kind = nullable_type_of(variant, &format!("{indent}   "));
        let _ = write!(out, "{indent} | {kind}");
        let said = place == 0 && above.is_some();
        let own = text(variant, "description").filter(|&own| !said && Some(own) != description);
        comment(out, own.map(str::to_owned), default(variant));
        out.push('\n');
    }
    let _ = writeln!(out, "{indent},");
}

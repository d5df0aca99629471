//! Schemas that would take the compiler minutes, gigabytes or all of its stack, whose own limits do
//! not see them.

use std::collections::HashSet;

use serde_json::{Map, Value};

/// The most expressions in a schema that intersects them: the automaton of an intersection may be
/// as large as the product of its parts.
const MOST_EXPRESSIONS: usize = 8;

/// The largest digits of `multipleOf`, of all of them together in a schema that intersects: an
/// automaton of as many states counts remainders.
const MOST_REMAINDERS: u64 = 10_000;

/// The most names in one object: each is compiled within the one before it, all of them in time of
/// their square. Where they are optional, the parser of an answer takes no more either.
const MOST_NAMES: usize = 2_000;

/// The most names in all objects together: as many as OpenAI takes.
const MOST_NAMES_IN_ALL: usize = 5_000;

/// The most names beside `minProperties` and `maxProperties`, for which the compiler may write the
/// whole object once a name.
const MOST_COUNTED: usize = 300;

/// The most levels that the compiler may go down, at some kilobytes of its stack each: those of the
/// schema, and again at each schema that is referred to, as in a chain of references.
const MOST_LEVELS: usize = 10_000;

/// The most parts of a schema that intersects schemas, counted once for each case that may get a
/// copy of them, of some hundred bytes each. Real ones have hundreds of parts and of cases.
const MOST_COPIES: usize = 3_000_000;

/// So many bytes of text, as in a constant, count as a part.
const PART_BYTES: usize = 256;

/// Keywords that bound nothing.
const ANNOTATIONS: [&str; 11] = [
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "examples",
    "title",
    "x-guidance",
];

/// What a schema holds, wherever in it.
#[derive(Default)]
struct Census<'a> {
    expressions: usize,
    multiples: Vec<u64>,
    /// Whether schemas are intersected that may have expressions.
    intersects: bool,
    /// Whether more than types are intersected, so that they are copied.
    copies: bool,
    references: HashSet<&'a str>,
    levels: usize,
    names: usize,
    /// The most names in one object, and in one whose properties are counted.
    most_names: usize,
    counted: Option<usize>,
    /// Schemas and values, and their text; and those of them for properties of any name, which
    /// names may get copies of.
    parts: usize,
    parts_for_any: usize,
    /// Alternatives, references, and elements of arrays.
    cases: usize,
}

/// Says what of a schema is too much.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    let mut census = Census::default();
    census.count(schema, 1, false);
    census.check_size()?;
    let Census { expressions, mut multiples, intersects, .. } = census;
    if intersects && expressions > MOST_EXPRESSIONS {
        return Err(format!(
            "got {expressions} patterns and formats in a schema with patternProperties, allOf, or \
             keywords beside anyOf, oneOf or $ref, expected at most {MOST_EXPRESSIONS}"
        ));
    }
    multiples.sort_unstable();
    multiples.dedup();
    let product = multiples.iter().fold(1_u64, |product, digits| product.saturating_mul(*digits));
    let largest = if intersects { product } else { multiples.last().copied().unwrap_or(1) };
    if largest > MOST_REMAINDERS {
        return Err(format!("multipleOf: got {largest}, expected at most {MOST_REMAINDERS}"));
    }
    Ok(())
}

impl<'a> Census<'a> {
    fn count(&mut self, value: &'a Value, level: usize, is_constant: bool) {
        self.levels = self.levels.max(level);
        self.parts += 1;
        match value {
            Value::Array(values) => {
                self.cases += if is_constant { values.len() } else { 0 };
                values.iter().for_each(|value| self.count(value, level + 1, is_constant));
            }
            Value::Object(fields) => self.count_fields(fields, level, is_constant),
            Value::String(text) => self.parts += text.len() / PART_BYTES,
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Names of properties count as the keywords that they look like: what is bounded is rare.
    fn count_fields(&mut self, fields: &'a Map<String, Value>, level: usize, is_constant: bool) {
        let names = if is_constant { fields.len() } else { names(fields) };
        self.names += names;
        self.most_names = self.most_names.max(names);
        let bounds = |name: &&String| !ANNOTATIONS.contains(&name.as_str());
        let keywords = fields.keys().filter(bounds).count();
        let more_than_type = keywords > 1 + usize::from(fields.contains_key("type"));
        for (name, value) in fields {
            match (name.as_str(), value) {
                ("pattern" | "format", Value::String(_)) => self.expressions += 1,
                ("patternProperties", Value::Object(patterns)) => {
                    self.expressions += patterns.len();
                    self.intersects = true;
                }
                ("multipleOf", Value::Number(number)) => self.multiples.push(digits(number)),
                ("minProperties" | "maxProperties", Value::Number(_)) => {
                    self.counted = self.counted.max(Some(names));
                }
                ("allOf", Value::Array(parts)) if parts.len() > 1 => self.intersects = true,
                ("allOf" | "anyOf" | "oneOf" | "$ref", _) => self.intersects |= keywords > 1,
                _ => {}
            }
            self.copies |= match name.as_str() {
                "patternProperties" => true,
                "allOf" => more_than_type || value.as_array().is_some_and(|parts| parts.len() > 1),
                "anyOf" | "oneOf" | "const" | "enum" => more_than_type,
                "$ref" => keywords > 1,
                _ => false,
            };
            match (name.as_str(), value) {
                ("$ref", Value::String(target)) => {
                    self.references.insert(target);
                    self.cases += 1;
                }
                ("anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(cases)) => {
                    self.cases += cases.len();
                }
                (name, Value::String(_)) if ANNOTATIONS.contains(&name) => continue,
                _ => {}
            }
            let before = self.parts;
            let is_constant = is_constant || matches!(name.as_str(), "const" | "enum");
            self.count(value, level + 1, is_constant);
            if matches!(name.as_str(), "additionalProperties" | "patternProperties") {
                self.parts_for_any += self.parts - before;
            }
        }
    }

    /// Says what is too much whatever it means.
    fn check_size(&self) -> Result<(), String> {
        let Self { names, most_names, levels, .. } = *self;
        let too_many = |got: usize, whose: &str, expected: usize| {
            let fields = "properties and required";
            Err(format!("{fields}: got {got} names {whose}, expected at most {expected}"))
        };
        if most_names > MOST_NAMES {
            return too_many(most_names, "in one object", MOST_NAMES);
        }
        if names > MOST_NAMES_IN_ALL {
            return too_many(names, "in all", MOST_NAMES_IN_ALL);
        }
        // Where objects are intersected, any names may come to stand beside it.
        let counted = self.counted.map_or(0, |own| if self.intersects { names } else { own });
        if counted > MOST_COUNTED {
            return too_many(counted, "beside minProperties or maxProperties", MOST_COUNTED);
        }
        let references = self.references.len();
        if levels.saturating_mul(references + 1) > MOST_LEVELS {
            return Err(format!(
                "$ref: got {references} schemas to refer to, of up to {levels} levels each, \
                 expected at most {MOST_LEVELS} levels in all"
            ));
        }
        let of_cases = self.parts.saturating_mul(self.cases);
        let copies = of_cases.saturating_add(self.parts_for_any.saturating_mul(names));
        if self.copies && copies > MOST_COPIES {
            return Err(format!(
                "got {copies} parts, counted once for each case, in a schema with \
                 patternProperties, allOf, or keywords beside anyOf, oneOf, enum, const or $ref, \
                 expected at most {MOST_COPIES}"
            ));
        }
        Ok(())
    }
}

/// How many names an object's schema lists: those of its properties, and of others that it
/// requires.
fn names(fields: &Map<String, Value>) -> usize {
    let properties = fields.get("properties").and_then(Value::as_object);
    let required = fields.get("required").and_then(Value::as_array);
    let is_other = |name: &&Value| {
        let name = name.as_str().unwrap_or_default();
        properties.is_none_or(|properties| !properties.contains_key(name))
    };
    let others = required.map_or(0, |required| required.iter().filter(is_other).count());
    properties.map_or(0, Map::len) + others
}

/// The digits of a number as a whole one, without its point: 0.25 is 25, 250 and 2.5e2 are 250.
fn digits(number: &serde_json::Number) -> u64 {
    let text = number.to_string();
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{}{}", whole.trim_start_matches('-'), fraction.trim_end_matches('0'));
    let shift = exponent.parse::<i64>().unwrap_or(i64::MAX).clamp(0, 99) as u32;
    digits.parse().unwrap_or(u64::MAX).saturating_mul(10_u64.saturating_pow(shift))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn patterns(count: usize) -> Vec<Value> {
        (0..count).map(|i| json!({"type": "string", "pattern": format!("a.{{{i}}}b.*c")})).collect()
    }

    #[test]
    fn intersections_of_many_expressions_are_too_much() {
        let nested = (0..9).fold(
            json!({"type": "string"}),
            |inner, i| json!({"pattern": format!("{i}.*"), "anyOf": [inner, {"const": "a"}]}),
        );
        let by_name: Map<String, Value> =
            (0..9).map(|i| (format!("a{i}.*"), json!({"type": "null"}))).collect();
        let definitions: Map<String, Value> =
            patterns(9).into_iter().enumerate().map(|(i, p)| (format!("d{i}"), p)).collect();
        for schema in [
            json!({"allOf": patterns(9)}),
            json!({"properties": {"a": {"allOf": patterns(9)}}}),
            json!({"patternProperties": by_name}),
            json!({"$defs": definitions, "$ref": "#/$defs/d1", "pattern": "x"}),
            nested,
        ] {
            assert!(check(&schema).unwrap_err().contains("expected at most 8"), "{schema}");
        }
        for schema in [
            json!({"allOf": patterns(8)}),
            json!({"anyOf": patterns(100), "description": "any", "$defs": {}}),
            json!({"type": "array", "prefixItems": patterns(100)}),
            json!({"type": "object", "properties": {"pattern": {"type": "string"}}}),
            json!(true),
        ] {
            assert_eq!(check(&schema), Ok(()), "{schema}");
        }
    }

    #[test]
    fn large_multiples_are_too_much() {
        let multiple = |n: Value| json!({"type": "number", "multipleOf": n});
        for fits in [json!(10_000), json!(0.01), json!(2.5), json!(1e-9), json!(7)] {
            assert_eq!(check(&multiple(fits.clone())), Ok(()), "{fits}");
        }
        for large in [json!(10_001), json!(1.000_01), json!(999_983), json!(99e3), json!(1e30)] {
            assert!(check(&multiple(large.clone())).is_err(), "{large}");
        }
        let both = [multiple(json!(997)), multiple(json!(991))];
        assert!(check(&json!({"allOf": both})).is_err());
        assert_eq!(check(&json!({"anyOf": both})), Ok(()));
    }

    /// An object with so many properties.
    fn object(names: usize) -> Value {
        let properties: Map<String, Value> =
            (0..names).map(|i| (format!("p{i}"), json!(true))).collect();
        json!({"type": "object", "properties": properties})
    }

    /// What is said of a schema that is too much.
    fn said(schema: &Value) -> String {
        check(schema).unwrap_err()
    }

    #[test]
    fn names_are_bounded_in_one_object_and_in_all() {
        let mut fits = object(2_000);
        fits["required"] = (0..2_000).map(|i| format!("p{i}")).collect();
        assert_eq!(check(&fits), Ok(()), "a name that is required is one name");
        fits["required"][0] = json!("other");
        let one = "properties and required: got 2001 names in one object, expected at most 2000";
        assert_eq!(said(&fits), one);
        assert_eq!(said(&json!({"items": object(2_001)})), one);
        for keyword in ["const", "enum"] {
            assert_eq!(said(&json!({keyword: [object(2_001)["properties"]]})), one);
        }
        let several = json!({"items": object(2_000), "anyOf": [object(2_000), object(1_001)]});
        let all = "properties and required: got 5001 names in all, expected at most 5000";
        assert_eq!(said(&several), all);
    }

    #[test]
    fn names_whose_number_is_bounded_are_few() {
        let one_of = |names: usize| {
            let mut object = object(names);
            object["maxProperties"] = json!(1);
            object
        };
        assert_eq!(check(&json!({"anyOf": [one_of(300), object(1_000)]})), Ok(()));
        let few = "properties and required: got 301 names beside minProperties or maxProperties, \
                   expected at most 300";
        assert_eq!(said(&one_of(301)), few);
        assert_eq!(said(&json!({"allOf": [object(301), {"minProperties": 1}]})), few);
    }

    #[test]
    fn long_chains_of_references_are_too_much() {
        let chain = |count: usize| {
            let link = |i: usize| (format!("a{i}"), json!({"$ref": format!("#/$defs/a{}", i + 1)}));
            let definitions: Map<String, Value> = (1..count).map(link).collect();
            json!({"$defs": definitions, "$ref": "#/$defs/a1"})
        };
        assert_eq!(check(&chain(2_499)), Ok(()));
        let long = "$ref: got 2500 schemas to refer to, of up to 4 levels each, expected at most \
                    10000 levels in all";
        assert_eq!(said(&chain(2_500)), long);
    }

    #[test]
    fn cases_are_few_where_each_gets_a_copy_of_much() {
        let much = object(1_000);
        let required = |count: usize| vec![json!({"required": ["p1"]}); count];
        let beside = |cases: Value| {
            let mut object = much.clone();
            object["anyOf"] = cases;
            object
        };
        assert_eq!(check(&beside(required(200).into())), Ok(()));
        let of_2_000 = said(&beside(required(2_000).into()));
        assert!(of_2_000.contains(" parts, counted once for each case, "), "{of_2_000}");
        assert_eq!(check(&json!({"type": "object", "anyOf": required(2_000)})), Ok(()));
        let numbers: Vec<usize> = (0..5_000).collect();
        assert_eq!(check(&json!({"type": "integer", "enum": numbers})), Ok(()));
        let text = "a".repeat(1_000_000);
        let list = json!({"items": {"const": text}});
        let any = vec![json!(true); 2_000];
        let lists = vec![json!({"type": "array", "$ref": "#/$defs/list"}); 2_000];
        for copied in [
            json!({"const": text, "enum": numbers}),
            json!({"allOf": [list, {"prefixItems": any}]}),
            json!({"allOf": [much, {"additionalProperties": list}]}),
            json!({"$defs": {"list": list}, "anyOf": lists}),
        ] {
            assert!(said(&copied).ends_with("expected at most 3000000"));
        }
    }
}

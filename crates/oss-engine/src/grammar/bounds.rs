//! Schemas that would take the compiler minutes or gigabytes, whose own limits do not see them.

use serde_json::{Map, Value};

/// The most expressions in a schema that intersects them: the automaton of an intersection may be
/// as large as the product of its parts.
const MOST_EXPRESSIONS: usize = 8;

/// The largest digits of `multipleOf`, of all of them together in a schema that intersects: an
/// automaton of as many states counts remainders.
const MOST_REMAINDERS: u64 = 10_000;

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
struct Census {
    expressions: usize,
    multiples: Vec<u64>,
    intersects: bool,
}

/// Says what of a schema is too much.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    let mut census = Census::default();
    census.count(schema);
    let Census { expressions, mut multiples, intersects } = census;
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

impl Census {
    fn count(&mut self, value: &Value) {
        match value {
            Value::Array(values) => values.iter().for_each(|value| self.count(value)),
            Value::Object(fields) => self.count_fields(fields),
            _ => {}
        }
    }

    /// Names of properties count as the keywords that they look like: what is bounded is rare.
    fn count_fields(&mut self, fields: &Map<String, Value>) {
        for (name, value) in fields {
            match (name.as_str(), value) {
                ("pattern" | "format", Value::String(_)) => self.expressions += 1,
                ("patternProperties", Value::Object(patterns)) => {
                    self.expressions += patterns.len();
                    self.intersects = true;
                }
                ("multipleOf", Value::Number(number)) => self.multiples.push(digits(number)),
                ("allOf", Value::Array(parts)) if parts.len() > 1 => self.intersects = true,
                ("allOf" | "anyOf" | "oneOf" | "$ref", _) => {
                    let bounds = |name: &&String| !ANNOTATIONS.contains(&name.as_str());
                    self.intersects |= fields.keys().filter(bounds).count() > 1;
                }
                _ => {}
            }
            self.count(value);
        }
    }
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
}

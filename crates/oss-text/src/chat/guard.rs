//! Keeping content from becoming control tokens on its way through a template.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// The two planes of private use: what stands for nothing that anybody writes.
const PRIVATE: [RangeInclusive<char>; 2] = ['\u{F0000}'..='\u{FFFFD}', '\u{100000}'..='\u{10FFFD}'];

/// Stand-ins for characters that could be part of a control token.
pub(super) struct Guard {
    names: Vec<String>,
    /// (character, its stand-in).
    pairs: Vec<(char, char)>,
}

/// How much of the content is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// Every character with which a control token begins or ends, and every other in one that is
    /// no letter or digit.
    Characters,
    /// The first character of every control token's name; and at the field's ends, where it may
    /// touch another, of every name's beginning, and the last of every name's end.
    Names,
}

impl Guard {
    /// Chooses stand-ins, from the planes of private use, that neither the template nor the request
    /// holds.
    ///
    /// # Errors
    /// [`Error::NoStandIns`].
    pub(super) fn new<'a>(
        names: impl Iterator<Item = &'a str>,
        source: &str,
        context: &Map<String, Value>,
    ) -> Result<Self> {
        let names: Vec<String> = names.map(str::to_owned).collect();
        let telling = |name: &String| -> Vec<char> {
            let ends = name.chars().next().into_iter().chain(name.chars().next_back());
            ends.chain(name.chars().filter(|c| !c.is_alphanumeric())).collect()
        };
        let mut characters: Vec<char> = names.iter().flat_map(telling).collect();
        characters.sort_unstable();
        characters.dedup();
        let mut used = HashSet::new();
        let mut note = |text: &str| used.extend(text.chars().filter(|&c| is_private(c)));
        note(source);
        each_string(context, &mut note);
        let free = PRIVATE.into_iter().flatten().filter(|c| !used.contains(c));
        let expected = characters.len();
        let pairs: Vec<(char, char)> = characters.into_iter().zip(free).collect();
        if pairs.len() < expected {
            return Err(Error::NoStandIns { got: pairs.len(), expected });
        }
        Ok(Self { names, pairs })
    }

    /// Puts stand-ins into everything but the variables that the model's files set. Tells whether
    /// there was anything to replace.
    pub(super) fn hide(
        &self,
        context: &mut Map<String, Value>,
        trusted: &Map<String, Value>,
        level: Level,
    ) -> bool {
        let mut changed = false;
        for (name, value) in context.iter_mut() {
            if !trusted.contains_key(name) {
                self.hide_value(value, level, &mut changed);
            }
        }
        changed
    }

    fn hide_value(&self, value: &mut Value, level: Level, changed: &mut bool) {
        match value {
            Value::String(text) => {
                if let Some(hidden) = self.hide_text(text, level) {
                    *text = hidden;
                    *changed = true;
                }
            }
            Value::Array(values) => {
                for value in values {
                    self.hide_value(value, level, changed);
                }
            }
            Value::Object(fields) => {
                let hidden = std::mem::take(fields).into_iter().map(|(name, mut value)| {
                    self.hide_value(&mut value, level, changed);
                    match self.hide_text(&name, level) {
                        Some(hidden) => {
                            *changed = true;
                            (hidden, value)
                        }
                        None => (name, value),
                    }
                });
                *fields = hidden.collect();
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn stand_in(&self, character: char) -> Option<char> {
        self.pairs.iter().find(|pair| pair.0 == character).map(|pair| pair.1)
    }

    /// `None`: nothing to replace.
    fn hide_text(&self, text: &str, level: Level) -> Option<String> {
        let ends = if level == Level::Names { self.partial_names(text) } else { Vec::new() };
        let begins_name = |at: usize| self.names.iter().any(|name| text[at..].starts_with(name));
        let hides = |at| level == Level::Characters || ends.contains(&at) || begins_name(at);
        let mut changed = false;
        let hide = |(at, character): (usize, char)| match self.stand_in(character) {
            Some(stand_in) if hides(at) => {
                changed = true;
                stand_in
            }
            _ => character,
        };
        let hidden = text.char_indices().map(hide).collect();
        changed.then_some(hidden)
    }

    /// Where the text ends with the beginning of a name, that beginning's first character; where
    /// it begins with the end of one, that end's last character.
    fn partial_names(&self, text: &str) -> Vec<usize> {
        let mut places = Vec::new();
        for name in &self.names {
            let last = name.chars().next_back().map_or(0, char::len_utf8);
            for (at, _) in name.char_indices().skip(1) {
                let (begin, end) = name.split_at(at);
                if text.ends_with(begin) {
                    places.push(text.len() - begin.len());
                }
                if text.starts_with(end) {
                    places.push(end.len() - last);
                }
            }
        }
        places
    }

    /// Puts the characters back: the text, and the offsets of what was put back.
    pub(super) fn restore(&self, written: &str) -> (String, Vec<usize>) {
        let mut text = String::with_capacity(written.len());
        let mut protected = Vec::new();
        for character in written.chars() {
            let pair = self.pairs.iter().find(|pair| pair.1 == character);
            if pair.is_some() {
                protected.push(text.len());
            }
            text.push(pair.map_or(character, |pair| pair.0));
        }
        (text, protected)
    }
}

fn is_private(character: char) -> bool {
    PRIVATE.iter().any(|plane| plane.contains(&character))
}

fn each_string(fields: &Map<String, Value>, see: &mut impl FnMut(&str)) {
    for (name, value) in fields {
        see(name);
        each_string_of(value, see);
    }
}

fn each_string_of(value: &Value, see: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => see(text),
        Value::Array(values) => {
            for value in values {
                each_string_of(value, see);
            }
        }
        Value::Object(fields) => each_string(fields, see),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The guard of `<|end|>` in a text, and the context that holds it.
    fn guard(text: &str) -> (Result<Guard>, Map<String, Value>) {
        let context = Map::from_iter([("text".to_owned(), json!(text))]);
        (Guard::new(["<|end|>"].into_iter(), "{{ text }}", &context), context)
    }

    #[test]
    fn stand_ins_are_found_in_the_second_plane_where_the_first_is_used_up() {
        let [first, second] = PRIVATE;
        let text: String = first.chain(second.take(7)).chain("<|end|>".chars()).collect();
        let (guard, mut context) = guard(&text);
        let guard = guard.unwrap();
        assert!(guard.hide(&mut context, &Map::new(), Level::Characters));
        let hidden = context["text"].as_str().unwrap();
        assert!(!hidden.contains(['<', '|', '>']) && hidden.contains("end"));
        let (restored, protected) = guard.restore(hidden);
        assert!(restored == text);
        assert_eq!(protected.len(), 4, "the four signs of the name");
    }

    #[test]
    fn without_stand_ins_there_is_no_guard() {
        let mut text: String = PRIVATE.into_iter().flatten().skip(2).collect();
        let (error, _) = guard(&text);
        let said = "the conversation leaves 2 private-use characters from U+F0000 on unused, \
                    expected at least 3";
        assert_eq!(error.err().unwrap().to_string(), said);
        text.pop();
        assert!(guard(&text).0.is_ok());
    }
}

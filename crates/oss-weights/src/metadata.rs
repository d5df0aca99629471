//! Typed key/value pairs, as GGUF files hold them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, shown};

mod array;
mod value;

pub use array::{Array, Number};
pub use value::{Value, ValueType};

pub(crate) use value::{encode_string, read_value};

/// A file's key/value pairs in the order of the file.
///
/// Scalars and strings are owned; arrays stay in the file's map and are decoded when asked for,
/// so that a vocabulary of 200,000 tokens costs nothing until the tokenizer is built.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    file: PathBuf,
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// Metadata without entries, of `file`.
    pub(crate) fn empty(file: &Path) -> Metadata {
        Metadata { file: file.to_path_buf(), ..Metadata::default() }
    }

    /// Appends an entry; a key that is already there is an error.
    pub(crate) fn insert(&mut self, key: &str, value: Value) -> Result<()> {
        if self.index.insert(key.to_string(), self.entries.len()).is_some() {
            return Err(Error::Metadata {
                file: self.file.clone(),
                key: shown(key),
                got: "the key a second time".to_string(),
                expected: "every key once".to_string(),
            });
        }
        self.entries.push((key.to_string(), value));
        Ok(())
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries (safetensors has none).
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All entries in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of `key`, whatever its type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    /// A non-negative integer of any width; `None` when the key is absent.
    pub fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "a non-negative integer", Value::as_u64)
    }

    /// An integer of any width; `None` when the key is absent.
    pub fn i64(&self, key: &str) -> Result<Option<i64>> {
        self.typed(key, "an integer", Value::as_i64)
    }

    /// A floating-point number of any width, or an integer; `None` when the key is absent.
    pub fn f64(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", Value::as_f64)
    }

    /// A truth value; `None` when the key is absent.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a bool", Value::as_bool)
    }

    /// A string; `None` when the key is absent.
    pub fn string(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", Value::as_str)
    }

    /// An array of any element type; `None` when the key is absent.
    pub fn array(&self, key: &str) -> Result<Option<&Array>> {
        self.typed(key, "an array", Value::as_array)
    }

    /// An array of strings, borrowed from the file; `None` when the key is absent.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&str>>> {
        let is_strings = |a: &&Array| a.element() == ValueType::String;
        let array = self.typed(key, "an array of strings", |v| v.as_array().filter(is_strings))?;
        array.map(Array::strings).transpose()
    }

    /// An array of integers of any width; `None` when the key is absent.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>> {
        let is_integers = |a: &&Array| a.element().is_integer();
        let array =
            self.typed(key, "an array of integers", |v| v.as_array().filter(is_integers))?;
        array.map(Array::integers).transpose()
    }

    /// An array of numbers of any width; `None` when the key is absent.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f64>>> {
        let is_number = |a: &&Array| a.element().is_number();
        let array = self.typed(key, "an array of numbers", |v| v.as_array().filter(is_number))?;
        array.map(Array::floats).transpose()
    }

    /// The error for a key that a caller cannot do without.
    pub fn missing(&self, key: &str) -> Error {
        Error::Metadata {
            file: self.file.clone(),
            key: shown(key),
            got: "no such key".to_string(),
            expected: "a value".to_string(),
        }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        view: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match view(value) {
            Some(typed) => Ok(Some(typed)),
            None => Err(Error::Metadata {
                file: self.file.clone(),
                key: shown(key),
                got: value.describe(),
                expected: expected.to_string(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Metadata {
        let mut metadata = Metadata::empty(Path::new("file"));
        metadata.insert("count", Value::U32(7)).unwrap();
        metadata.insert("scale", Value::F32(0.5)).unwrap();
        metadata.insert("shift", Value::I16(-2)).unwrap();
        metadata.insert("name", Value::from("demo")).unwrap();
        metadata.insert("tokens", Array::of_strings(["a", "", "ü"]).into()).unwrap();
        metadata.insert("types", Array::of_numbers(&[1i32, -1]).into()).unwrap();
        metadata
    }

    #[test]
    fn values_are_had_by_key_and_kind() {
        let metadata = sample();
        assert_eq!(metadata.u64("count").unwrap(), Some(7));
        assert_eq!(metadata.i64("shift").unwrap(), Some(-2));
        assert_eq!(metadata.f64("scale").unwrap(), Some(0.5));
        assert_eq!(metadata.f64("count").unwrap(), Some(7.0));
        assert_eq!(metadata.string("name").unwrap(), Some("demo"));
        assert_eq!(metadata.strings("tokens").unwrap(), Some(vec!["a", "", "ü"]));
        assert_eq!(metadata.integers("types").unwrap(), Some(vec![1, -1]));
        assert_eq!(metadata.floats("types").unwrap(), Some(vec![1.0, -1.0]));
        assert_eq!(metadata.bool("absent").unwrap(), None);
        let keys: Vec<&str> = metadata.iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["count", "scale", "shift", "name", "tokens", "types"]);
    }

    #[test]
    fn a_value_of_another_type_is_an_error_that_names_the_key() {
        let metadata = sample();
        let error = metadata.u64("shift").unwrap_err().to_string();
        assert_eq!(error, "file: metadata shift: got i16 -2, expected a non-negative integer");
        let error = metadata.strings("types").unwrap_err().to_string();
        assert_eq!(error, "file: metadata types: got array of 2 i32, expected an array of strings");
        let error = metadata.missing("x").to_string();
        assert_eq!(error, "file: metadata x: got no such key, expected a value");
    }

    #[test]
    fn a_second_value_for_a_key_is_refused() {
        let error = sample().insert("name", Value::Bool(true)).unwrap_err().to_string();
        assert!(error.contains("metadata name: got the key a second time"), "{error}");
    }
}

//! Which tensors are packed as another type than their file's.

use crate::catalog::Catalog;
use oss_quant::Dtype;
use oss_weights::Container;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_128;

/// A precision plan: the types that tensors are packed as instead of their own, by tensor name.
/// The empty one leaves all as they are.
///
/// A tensor is decoded row by row and encoded again ([`Dtype::quantise_row`]), so that the plan
/// decides the bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Precision(BTreeMap<String, Dtype>);

impl Precision {
    /// What a packed file was packed as; of other files the empty plan.
    ///
    /// # Errors
    /// When what the file says of its tensors cannot be understood.
    pub fn of(container: &Container) -> crate::error::Result<Self> {
        Ok(Catalog::of(container)?.precision().clone())
    }

    /// Says that a tensor is packed as `dtype`.
    pub fn set(&mut self, tensor: &str, dtype: Dtype) {
        self.0.insert(tensor.to_owned(), dtype);
    }

    /// Takes over what another plan says.
    pub fn extend(&mut self, other: &Self) {
        self.0.extend(other.iter().map(|(tensor, dtype)| (tensor.to_owned(), dtype)));
    }

    /// The type that a tensor is packed as; `None`: its own.
    #[must_use]
    pub fn get(&self, tensor: &str) -> Option<Dtype> {
        self.0.get(tensor).copied()
    }

    /// Whether all tensors stay as they are.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tensors and their types, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Dtype)> {
        self.0.iter().map(|(tensor, dtype)| (tensor.as_str(), *dtype))
    }

    /// `{tensor: type}`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let entry = |(tensor, dtype): (&str, Dtype)| (tensor.to_owned(), json!(dtype.name()));
        Value::Object(self.iter().map(entry).collect::<Map<_, _>>())
    }

    /// Reads what [`Precision::to_json`] gives.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn from_json(value: &Value) -> Result<Self, String> {
        let Value::Object(map) = value else {
            return Err(format!("{value}, no object of types by tensor"));
        };
        let entry = |(tensor, dtype): (&String, &Value)| {
            let name = dtype.as_str().ok_or_else(|| format!("{dtype} for {tensor}"))?;
            let dtype = Dtype::from_name(name).map_err(|error| format!("{error} for {tensor}"))?;
            Ok((tensor.clone(), dtype))
        };
        Ok(Self(map.iter().map(entry).collect::<Result<_, String>>()?))
    }

    /// The fingerprint of files whose tensors are packed so, out of the files' own.
    pub(crate) fn fingerprint(&self, files: u128) -> u128 {
        if self.is_empty() {
            return files;
        }
        let mut bytes = files.to_le_bytes().to_vec();
        bytes.extend_from_slice(self.to_json().to_string().as_bytes());
        xxh3_128(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_gives_the_same_plan_back() {
        let mut plan = Precision::default();
        plan.set("b", Dtype::Q8_0);
        plan.set("a", Dtype::Bf16);
        assert_eq!(plan.to_json().to_string(), r#"{"a":"BF16","b":"Q8_0"}"#);
        assert_eq!(Precision::from_json(&plan.to_json()), Ok(plan));
    }

    #[test]
    fn what_is_no_plan_says_why() {
        let error =
            |text: &str| Precision::from_json(&serde_json::from_str(text).unwrap()).unwrap_err();
        assert_eq!(error("[]"), "[], no object of types by tensor");
        assert_eq!(error(r#"{"a": 4}"#), "4 for a");
        assert!(error(r#"{"a": "Q9"}"#).contains("Q9"));
    }

    #[test]
    fn each_plan_has_a_fingerprint_of_its_own() {
        let mut plan = Precision::default();
        assert_eq!(plan.fingerprint(7), 7);
        plan.set("a", Dtype::Q4_0);
        let four = plan.fingerprint(7);
        plan.set("a", Dtype::Iq4Nl);
        let table = plan.fingerprint(7);
        assert!(four != 7 && table != 7 && four != table && table != plan.fingerprint(8));
    }
}

//! The types and shapes of a model's tensors, also of those that a packed file no longer has.

use crate::error::{Error, Result};
use crate::precision::Precision;
use oss_quant::Dtype;
use oss_weights::{Container, Kind, shown};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// The blob of a packed file that lists the tensors which it was made from:
/// `{name: [type, [dimensions, outermost first]]}`.
pub(crate) const CATALOG: &str = "tensors.json";
/// The blob of a packed file that lists those of them which it has as another type:
/// `{name: type}`.
pub(crate) const PRECISION: &str = "precision.json";

/// Names, types and shapes.
pub(crate) struct Catalog {
    tensors: HashMap<String, (Dtype, Vec<usize>)>,
    precision: Precision,
}

impl Catalog {
    /// The tensors of a container; of a packed file: those that it was made from.
    pub(crate) fn of(container: &Container) -> Result<Self> {
        if container.kind() != Kind::Packed {
            let tensor = |info: &oss_weights::TensorInfo| {
                (info.name.clone(), (info.dtype, info.shape.clone()))
            };
            let tensors = container.tensors().map(tensor).collect();
            return Ok(Self { tensors, precision: Precision::default() });
        }
        let tensors = Self::packed_from(container)?;
        let Some(bytes) = container.side_file(PRECISION)? else {
            return Ok(Self { tensors, precision: Precision::default() });
        };
        let precision = serde_json::from_slice(&bytes).map_err(|error| error.to_string());
        let precision = precision.and_then(|value| Precision::from_json(&value));
        let expected = "types of tensors by their names";
        let wrong = |got: String| wrong(container, PRECISION, &got, expected);
        Ok(Self { tensors, precision: precision.map_err(wrong)? })
    }

    /// The tensors that a packed file was made from.
    fn packed_from(container: &Container) -> Result<HashMap<String, (Dtype, Vec<usize>)>> {
        let expected = "types and shapes of tensors by their names";
        let wrong = |got: String| wrong(container, CATALOG, &got, expected);
        let bytes = container.side_file(CATALOG)?.ok_or_else(|| wrong("no section".into()))?;
        let map: Map<String, Value> =
            serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        let entry = |(name, value): (String, Value)| {
            let (dtype, shape): (String, Vec<usize>) =
                serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
            let dtype = Dtype::from_name(&dtype).map_err(|error| wrong(error.to_string()))?;
            if shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).is_none() {
                return Err(wrong(format!("{name} of {shape:?}")));
            }
            Ok((name, (dtype, shape)))
        };
        map.into_iter().map(entry).collect()
    }

    /// The same tensors, packed as a plan says.
    pub(crate) fn with(self, precision: &Precision) -> Self {
        Self { precision: precision.clone(), ..self }
    }

    /// How tensors are packed.
    pub(crate) const fn precision(&self) -> &Precision {
        &self.precision
    }

    /// The names of all tensors.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The type that a tensor is packed as, and its shape.
    pub(crate) fn get(&self, container: &Container, name: &str) -> Result<(Dtype, &[usize])> {
        let (dtype, shape) = self.get_unpacked(container, name)?;
        Ok((self.precision.get(name).unwrap_or(dtype), shape))
    }

    /// The type that a tensor had before it was packed, and its shape.
    pub(crate) fn get_unpacked(
        &self,
        container: &Container,
        name: &str,
    ) -> Result<(Dtype, &[usize])> {
        let found = self.tensors.get(name).map(|(dtype, shape)| (*dtype, shape.as_slice()));
        found.ok_or_else(|| {
            let expected = format!("one of the {} tensors of the file", self.tensors.len());
            wrong(container, &format!("tensor {name}"), "nothing", &expected)
        })
    }

    /// The blobs for a packed file.
    pub(crate) fn blobs(&self) -> Vec<(&'static str, Vec<u8>)> {
        let mut names: Vec<&String> = self.tensors.keys().collect();
        names.sort_unstable();
        let entry = |name: &String| {
            let (dtype, shape) = &self.tensors[name];
            (name.clone(), json!([dtype.name(), shape]))
        };
        let map: Map<String, Value> = names.into_iter().map(entry).collect();
        let mut blobs = vec![(CATALOG, Value::Object(map).to_string().into_bytes())];
        if !self.precision.is_empty() {
            blobs.push((PRECISION, self.precision.to_json().to_string().into_bytes()));
        }
        blobs
    }
}

/// An error about what the file says of its tensors.
fn wrong(container: &Container, field: &str, got: &str, expected: &str) -> Error {
    let (path, field) = (container.path().to_owned(), field.to_owned());
    Error::Field { path, field, got: shown(got), expected: expected.to_owned() }
}

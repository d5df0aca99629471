//! The types and shapes of a model's tensors, also of those that a packed file no longer has.

use crate::error::{Error, Result};
use oss_quant::Dtype;
use oss_weights::{Container, Kind};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// The blob of a packed file that lists the tensors which it was made from:
/// `{name: [type, [dimensions, outermost first]]}`.
pub(crate) const CATALOG: &str = "tensors.json";

/// Names, types and shapes.
pub(crate) struct Catalog(HashMap<String, (Dtype, Vec<usize>)>);

impl Catalog {
    /// The tensors of a container; of a packed file: those that it was made from.
    pub(crate) fn of(container: &Container) -> Result<Self> {
        if container.kind() != Kind::Packed {
            let tensor = |info: &oss_weights::TensorInfo| {
                (info.name.clone(), (info.dtype, info.shape.clone()))
            };
            return Ok(Self(container.tensors().map(tensor).collect()));
        }
        let wrong = |got: String| Error::Field {
            path: container.path().to_owned(),
            field: CATALOG.to_owned(),
            got,
            expected: "types and shapes of tensors by their names".to_owned(),
        };
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
        Ok(Self(map.into_iter().map(entry).collect::<Result<_>>()?))
    }

    /// A tensor's type and shape.
    pub(crate) fn get(&self, container: &Container, name: &str) -> Result<(Dtype, &[usize])> {
        let found = self.0.get(name).map(|(dtype, shape)| (*dtype, shape.as_slice()));
        found.ok_or_else(|| Error::Field {
            path: container.path().to_owned(),
            field: format!("tensor {name}"),
            got: "nothing".to_owned(),
            expected: format!("one of the {} tensors of the file", self.0.len()),
        })
    }

    /// The blob for a packed file.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut names: Vec<&String> = self.0.keys().collect();
        names.sort_unstable();
        let entry = |name: &String| {
            let (dtype, shape) = &self.0[name];
            (name.clone(), json!([dtype.name(), shape]))
        };
        let map: Map<String, Value> = names.into_iter().map(entry).collect();
        Value::Object(map).to_string().into_bytes()
    }
}

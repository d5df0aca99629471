//! A model file's configuration, wherever the format keeps it.

use crate::catalog::Catalog;
use crate::error::{Error, Result};
use oss_quant::Dtype;
use oss_weights::{Container, Kind, shown};
use serde_json::Value;
use std::borrow::Cow;
use std::path::Path;

/// The longest list of layers that is believed.
const MAX_LAYERS: usize = 4096;

/// The configuration of a container: a JSON object beside it, or its own metadata.
pub(crate) struct ConfigReader<'a> {
    pub(crate) container: &'a Container,
    catalog: Catalog,
    json: Option<Value>,
    /// What GGUF keys of the architecture start with.
    prefix: String,
}

/// One field's name in both places.
#[derive(Clone, Copy)]
pub(crate) struct Field {
    /// The object of `config.json` that has it; empty for the file's own.
    pub(crate) object: &'static str,
    /// In that object.
    pub(crate) json: &'static str,
    /// In GGUF metadata, after the architecture's name and a dot.
    pub(crate) gguf: &'static str,
}

/// Shorthand for a [`Field`].
pub(crate) const fn field(json: &'static str, gguf: &'static str) -> Field {
    Field { object: "", json, gguf }
}

impl Field {
    /// A field of an object in `config.json`, which GGUF has not.
    pub(crate) const fn within(object: &'static str, json: &'static str) -> Self {
        Self { object, json, gguf: "" }
    }
}

/// What a message says of a JSON value: of a string its text.
pub(crate) fn text_of(value: &Value) -> Cow<'_, str> {
    value.as_str().map_or_else(|| value.to_string().into(), Cow::Borrowed)
}

impl<'a> ConfigReader<'a> {
    pub(crate) fn new(container: &'a Container) -> Result<Self> {
        let path = container.path();
        let metadata = container.metadata();
        // A packed file has metadata where it was made from GGUF.
        if container.kind() == Kind::Gguf || !metadata.is_empty() {
            let Some(architecture) = metadata.string("general.architecture")? else {
                return Err(metadata.missing("general.architecture").into());
            };
            let prefix = architecture.to_owned();
            let catalog = Catalog::of(container)?;
            return Ok(Self { container, catalog, json: None, prefix });
        }
        let wrong = |got: String| Error::Field {
            path: path.to_owned(),
            field: "config.json".to_owned(),
            got: shown(&got),
            expected: "a JSON object beside the weights".to_owned(),
        };
        let bytes = container.side_file("config.json")?.ok_or_else(|| wrong("no file".into()))?;
        let json: Value = serde_json::from_slice(&bytes).map_err(|e| wrong(e.to_string()))?;
        if !json.is_object() {
            return Err(wrong("something else".to_owned()));
        }
        let catalog = Catalog::of(container)?;
        Ok(Self { container, catalog, json: Some(json), prefix: String::new() })
    }

    pub(crate) fn path(&self) -> &Path {
        self.container.path()
    }

    /// The dimensions of a tensor, packed or not.
    pub(crate) fn tensor_shape(&self, name: &str) -> Result<&[usize]> {
        Ok(self.catalog.get(self.container, name)?.1)
    }

    /// The type of a tensor before it was packed, if it is.
    pub(crate) fn tensor_dtype(&self, name: &str) -> Result<Dtype> {
        Ok(self.catalog.get_unpacked(self.container, name)?.0)
    }

    /// The names of all tensors, packed or not.
    pub(crate) fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.catalog.names()
    }

    /// Whether the model has a tensor of that name, packed or not.
    pub(crate) fn has_tensor(&self, name: &str) -> bool {
        self.tensor_shape(name).is_ok()
    }

    /// Whether the names are those of GGUF.
    pub(crate) const fn is_gguf(&self) -> bool {
        self.json.is_none()
    }

    /// What the file calls its architecture.
    pub(crate) fn architecture(&self) -> Result<String> {
        if self.is_gguf() {
            return Ok(self.prefix.clone());
        }
        let field = field("model_type", "");
        self.text(field)?.ok_or_else(|| self.wrong(field, "nothing", "a model type"))
    }

    fn name(&self, field: Field) -> String {
        if self.is_gguf() {
            format!("{}.{}", self.prefix, field.gguf)
        } else if field.object.is_empty() {
            field.json.to_owned()
        } else {
            format!("{}.{}", field.object, field.json)
        }
    }

    /// An error about a field; `got` may be the file's own words.
    pub(crate) fn wrong(&self, field: Field, got: &str, expected: &str) -> Error {
        Error::Field {
            path: self.path().to_owned(),
            field: shown(&self.name(field)),
            got: shown(got),
            expected: expected.to_owned(),
        }
    }

    /// An error about what this engine does not do; `got` may be the file's own words.
    pub(crate) fn unsupported(&self, what: &'static str, got: &str, expected: &str) -> Error {
        Error::Unsupported {
            path: self.path().to_owned(),
            what,
            got: shown(got),
            expected: expected.to_owned(),
        }
    }

    /// The JSON value of a field; `null` counts as absent.
    pub(crate) fn json(&self, field: Field) -> Option<&Value> {
        let all = self.json.as_ref()?;
        let object = if field.object.is_empty() { all } else { all.get(field.object)? };
        let value = object.get(field.json)?;
        (!value.is_null()).then_some(value)
    }

    /// A finite number.
    pub(crate) fn number(&self, field: Field) -> Result<Option<f64>> {
        let number = if self.is_gguf() {
            self.container.metadata().f64(&self.name(field))?
        } else {
            let Some(value) = self.json(field) else { return Ok(None) };
            let number = value.as_f64();
            Some(number.ok_or_else(|| self.wrong(field, &text_of(value), "a number"))?)
        };
        match number {
            Some(number) if !number.is_finite() => {
                Err(self.wrong(field, &number.to_string(), "a finite number"))
            }
            number => Ok(number),
        }
    }

    pub(crate) fn required_number(&self, field: Field) -> Result<f64> {
        self.number(field)?.ok_or_else(|| self.wrong(field, "nothing", "a number"))
    }

    /// A number above 0, in single precision too.
    pub(crate) fn positive(&self, field: Field) -> Result<Option<f64>> {
        match self.number(field)? {
            Some(number) if number < 0.0 || !(number as f32).is_normal() => {
                Err(self.wrong(field, &number.to_string(), "a number above 0"))
            }
            number => Ok(number),
        }
    }

    pub(crate) fn required_positive(&self, field: Field) -> Result<f64> {
        self.positive(field)?.ok_or_else(|| self.wrong(field, "nothing", "a number above 0"))
    }

    pub(crate) fn count(&self, field: Field) -> Result<Option<usize>> {
        let value = if self.is_gguf() {
            self.container.metadata().u64(&self.name(field))?
        } else {
            match self.json(field) {
                None => None,
                Some(value) => Some(
                    value
                        .as_u64()
                        .ok_or_else(|| self.wrong(field, &text_of(value), "a whole number"))?,
                ),
            }
        };
        let small = |n: u64| u32::try_from(n).ok().map(|n| n as usize);
        match value {
            None => Ok(None),
            Some(n) => small(n)
                .map(Some)
                .ok_or_else(|| self.wrong(field, &n.to_string(), "a whole number below 2^32")),
        }
    }

    /// A whole number of at least 1.
    pub(crate) fn required_count(&self, field: Field) -> Result<usize> {
        match self.count(field)? {
            Some(0) => Err(self.wrong(field, "0", "at least 1")),
            Some(n) => Ok(n),
            None => Err(self.wrong(field, "nothing", "a whole number")),
        }
    }

    /// How many layers there are.
    pub(crate) fn layer_count(&self) -> Result<usize> {
        let field = field("num_hidden_layers", "block_count");
        let n = self.required_count(field)?;
        if n > MAX_LAYERS {
            return Err(self.wrong(field, &n.to_string(), &format!("at most {MAX_LAYERS}")));
        }
        Ok(n)
    }

    pub(crate) fn flag(&self, field: Field) -> Result<Option<bool>> {
        if self.is_gguf() {
            return Ok(self.container.metadata().bool(&self.name(field))?);
        }
        let Some(value) = self.json(field) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(field, &text_of(value), "true or false"))
    }

    pub(crate) fn text(&self, field: Field) -> Result<Option<String>> {
        if self.is_gguf() {
            return Ok(self.container.metadata().string(&self.name(field))?.map(str::to_owned));
        }
        let Some(value) = self.json(field) else { return Ok(None) };
        let text = value.as_str().map(str::to_owned);
        text.map(Some).ok_or_else(|| self.wrong(field, &text_of(value), "a string"))
    }
}

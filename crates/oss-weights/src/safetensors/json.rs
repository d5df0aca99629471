//! The two JSON documents of the format, read without trusting them.
//!
//! serde_json bounds the nesting, allocates no more than the text's own size and keeps going from
//! one entry to the next; what it does not do is refuse names that come twice.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::error::{Error, Result, shown};
use crate::tensor::MOST_DIMENSIONS;

/// One tensor of the header as it is written.
#[derive(Debug, Deserialize)]
pub(crate) struct Entry {
    pub(crate) dtype: String,
    #[serde(deserialize_with = "shape")]
    pub(crate) shape: Vec<u64>,
    pub(crate) data_offsets: [u64; 2],
}

/// Dimensions: a list is refused as it grows too long, not when it is all there.
fn shape<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<u64>, D::Error> {
    deserializer.deserialize_seq(ShapeVisitor)
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Vec<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Vec<u64>, A::Error> {
        let mut shape = Vec::new();
        while let Some(dimension) = list.next_element()? {
            if shape.len() == MOST_DIMENSIONS {
                let text = format!("more than {MOST_DIMENSIONS} dimensions");
                return Err(de::Error::custom(text));
            }
            shape.push(dimension);
        }
        Ok(shape)
    }
}

/// What may stand in the header: tensors, and one entry of notes.
enum Item {
    Tensor(Entry),
    Notes,
}

/// The header's tensors in the order of the file.
pub(crate) fn header(file: &Path, text: &[u8]) -> Result<Vec<(String, Entry)>> {
    let items: Unique<HeaderItem> = parse(file, "header", text)?;
    let tensor = |(name, item): (String, HeaderItem)| match item.0 {
        Item::Tensor(entry) => Some((name, entry)),
        Item::Notes => None,
    };
    Ok(items.0.into_iter().filter_map(tensor).collect())
}

/// The index's map from tensors to shards.
pub(crate) fn weight_map(file: &Path, text: &[u8]) -> Result<HashMap<String, String>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: Unique<ShardName>,
    }
    let index: Index = parse(file, "index", text)?;
    Ok(index.weight_map.0.into_iter().map(|(name, shard)| (name, shard.0)).collect())
}

fn parse<'a, T: Deserialize<'a>>(file: &Path, what: &str, text: &'a [u8]) -> Result<T> {
    let text = std::str::from_utf8(text).map_err(|error| {
        let got = format!("other bytes after {}", error.valid_up_to());
        Error::invalid(file, what, got, "UTF-8")
    })?;
    serde_json::from_str(text).map_err(|error| {
        Error::invalid(file, what, shown(&error.to_string()), "a JSON object as the format has it")
    })
}

/// The value of one name, which decides how it is read.
trait Named: Sized {
    fn read<'de, A: MapAccess<'de>>(name: &str, map: &mut A)
    -> std::result::Result<Self, A::Error>;
}

struct HeaderItem(Item);

impl Named for HeaderItem {
    fn read<'de, A: MapAccess<'de>>(
        name: &str,
        map: &mut A,
    ) -> std::result::Result<Self, A::Error> {
        if name == "__metadata__" {
            map.next_value::<IgnoredAny>()?;
            return Ok(HeaderItem(Item::Notes));
        }
        let entry = map.next_value().map_err(|error| named(name, &error))?;
        Ok(HeaderItem(Item::Tensor(entry)))
    }
}

struct ShardName(String);

impl Named for ShardName {
    fn read<'de, A: MapAccess<'de>>(
        name: &str,
        map: &mut A,
    ) -> std::result::Result<Self, A::Error> {
        map.next_value().map(ShardName).map_err(|error| named(name, &error))
    }
}

fn named<E: de::Error>(name: &str, error: &E) -> E {
    E::custom(format!("tensor {}: {error}", shown(name)))
}

/// A JSON object as a list, each name once.
struct Unique<T>(Vec<(String, T)>);

impl<'de, T: Named> Deserialize<'de> for Unique<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueVisitor(PhantomData))
    }
}

struct UniqueVisitor<T>(PhantomData<T>);

impl<'de, T: Named> Visitor<'de> for UniqueVisitor<T> {
    type Value = Unique<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Unique<T>, A::Error> {
        let mut seen = HashSet::new();
        let mut items = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = T::read(&name, &mut map)?;
            if !seen.insert(name.clone()) {
                return Err(de::Error::custom(format!("tensor {} comes twice", shown(&name))));
            }
            items.push((name, value));
        }
        Ok(Unique(items))
    }
}

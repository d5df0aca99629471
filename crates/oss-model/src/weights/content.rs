//! Everything about weights that decides results, as a hash.

use super::{Embedding, FeedForwardWeights, MatrixLocation, Weights};
use crate::content_key::add;
use oss_quant::Packing;
use oss_weights::Encoded;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

impl Weights {
    /// Adds all matrices, vectors and embeddings: the same for a file and the packed one made of
    /// it.
    pub(crate) fn add_content(&self, hash: &mut Xxh3) {
        for checksum in self.storage.checksums(&self.container) {
            hash.update(&checksum.to_le_bytes());
        }
        for location in self.locations() {
            // What its names are decides no bit.
            let MatrixLocation { packing, section, start } = location;
            let Packing { format, rows, cols } = packing;
            let said = format!("{} {rows} {cols} {section:?} {start}", format.dtype().name());
            add(hash, said.as_bytes());
        }
        self.vectors().for_each(|numbers| add_numbers(hash, numbers));
        if let Embedding::Tensor(name) = &self.embedding {
            let (format, checksum) = self.kept_tensor(name);
            add(hash, format.as_bytes());
            hash.update(&checksum.to_le_bytes());
        }
    }

    /// Bytes of what is not packed: norms, biases and sinks, which lie in memory as numbers.
    #[must_use]
    pub fn vector_bytes(&self) -> usize {
        self.vectors().flatten().map(|numbers| size_of_val(numbers.as_slice())).sum()
    }

    /// Norms, biases and sinks in a fixed order; where a layer has none, none.
    fn vectors(&self) -> impl Iterator<Item = Option<&Vec<f32>>> {
        let in_layers = self.layers.iter().flat_map(|layer| {
            let router_bias = match &layer.feed_forward {
                FeedForwardWeights::Experts(experts) => experts.router_bias.as_ref(),
                FeedForwardWeights::Dense(_) => None,
            };
            [
                Some(&layer.attention_norm),
                layer.qkv_bias.as_ref(),
                layer.output_bias.as_ref(),
                layer.sinks.as_ref(),
                Some(&layer.feed_forward_norm),
                router_bias,
                layer.gate_up_bias.as_ref(),
                layer.down_bias.as_ref(),
            ]
        });
        [Some(&self.norm)].into_iter().chain(in_layers)
    }

    /// The element type of a tensor that is kept as it is, and the checksum of its bytes.
    fn kept_tensor(&self, name: &str) -> (&str, u64) {
        let container = &self.container;
        if let Some(section) = container.packed().and_then(|file| file.find(name)) {
            return (&section.format, section.checksum);
        }
        let Some((info, Encoded::Plain(bytes))) = container.find(name).map(|x| (x.info, x.data))
        else {
            panic!("tensor {name}: expected a plain one, as when the weights were loaded");
        };
        let checksum = xxh3_64(bytes);
        container.release(name);
        (info.dtype.name(), checksum)
    }
}

fn add_numbers(hash: &mut Xxh3, numbers: Option<&Vec<f32>>) {
    let numbers = numbers.map_or(&[][..], Vec::as_slice);
    hash.update(&(numbers.len() as u64).to_le_bytes());
    numbers.iter().for_each(|number| hash.update(&number.to_bits().to_le_bytes()));
}

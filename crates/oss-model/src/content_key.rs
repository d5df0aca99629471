//! A key for what was computed: keys and values that outlive the process.

use std::time::UNIX_EPOCH;

use xxhash_rust::xxh3::Xxh3;

use crate::model::Model;
use oss_weights::{Container, Encoded, packed};

/// Changes whenever the same model, tokens and options give other bits than before, or keys and
/// values lie in pages as other bytes.
///
/// A test compares it with the bits themselves: who changes them raises it.
pub const NUMERICS_VERSION: u32 = 11;

/// Places of a tensor that are looked at.
const SAMPLES: usize = 4;
/// Bytes of each: a page.
const SAMPLE_BYTES: usize = 4096;

impl Model {
    /// A key for caches of keys and values that outlive the process: equal for what gives the same
    /// bits. It is made of all numbers of the model and its configuration, the version of
    /// packed files, the instruction set, activations, the format of keys and values, sparse
    /// attention and [`NUMERICS_VERSION`].
    ///
    /// Of a packed file it takes the table's word for its sections; else packed matrices are read
    /// once in memory, and the embeddings of a model with a head of its own in their file.
    #[must_use]
    pub fn content_key(&self) -> u64 {
        let mut hash = Xxh3::new();
        self.weights.add_content(&mut hash);
        // Every number of the configuration, written exactly.
        add(&mut hash, format!("{:?}", self.config).as_bytes());
        add(&mut hash, &packed::VERSION.to_le_bytes());
        for name in [self.isa.name(), self.activation.name(), self.kv_format.name()] {
            add(&mut hash, name.as_bytes());
        }
        if let Some(sparse) = self.sparse_attention {
            add(&mut hash, sparse.to_string().as_bytes());
        }
        add(&mut hash, &NUMERICS_VERSION.to_le_bytes());
        hash.digest()
    }
}

/// A number for a model's files: samples of the tensors (of bytes in memory all), and all of what
/// stands beside them.
pub(crate) fn of_files(container: &Container, beside: &[(&str, Vec<u8>)]) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(&container.fingerprint().0.to_le_bytes());
    add_samples(container, &mut hash);
    for (name, bytes) in beside {
        add(&mut hash, name.as_bytes());
        add(&mut hash, bytes);
    }
    hash.digest128()
}

/// Another number for such files whenever one of them has been written again.
pub(crate) fn of_written_files(of_files: u128, container: &Container) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(&of_files.to_le_bytes());
    for modified in container.modified() {
        let age = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        hash.update(&age.unwrap_or_default().as_nanos().to_le_bytes());
    }
    hash.digest128()
}

/// Adds bytes and how many they are, so that neighbours cannot be taken for each other.
pub(crate) fn add(hash: &mut Xxh3, bytes: &[u8]) {
    hash.update(&(bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

/// Adds samples of every tensor: small ones, as norms and biases, as a whole.
fn add_samples(container: &Container, hash: &mut Xxh3) {
    let is_in_files = container.is_in_files();
    for info in container.tensors() {
        add(hash, info.name.as_bytes());
        let Some(tensor) = container.find(&info.name) else { continue };
        let parts = match tensor.data {
            Encoded::Plain(bytes) => [bytes, &[]],
            Encoded::Split { codes, scales } => [codes, scales],
        };
        for part in parts {
            if !is_in_files {
                add(hash, part);
                continue;
            }
            let last = part.len().saturating_sub(SAMPLE_BYTES);
            for sample in 0..SAMPLES {
                let start = (last as u128 * sample as u128 / (SAMPLES as u128 - 1)) as usize;
                add(hash, &part[start..part.len().min(start + SAMPLE_BYTES)]);
            }
        }
    }
}

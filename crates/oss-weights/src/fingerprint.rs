//! A cheap key of a model's content.

use xxhash_rust::xxh3::Xxh3;

/// How many places of a file are sampled.
const SAMPLES: usize = 64;
/// How many bytes are taken at each: a page.
const SAMPLE_BYTES: usize = 4096;

/// A 128-bit key of a model's files, for caches.
///
/// It tells apart files that differ in size, header or a sampled page: different models, other
/// quantisations, a file still being written. It is no proof of integrity: two files that differ
/// in one weight alone may share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub u128);

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The fingerprint of files, each with the length of its header.
pub(crate) fn of<'a>(files: impl Iterator<Item = (&'a [u8], usize)>) -> Fingerprint {
    let mut hash = Xxh3::new();
    for (bytes, header) in files {
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(&(header as u64).to_le_bytes());
        hash.update(&bytes[..header]);
        let content = &bytes[header..];
        let last = content.len().saturating_sub(SAMPLE_BYTES);
        for sample in 0..SAMPLES {
            // The first sample starts at the first byte, the last one ends at the last byte.
            let start = (last as u128 * sample as u128 / (SAMPLES as u128 - 1)) as usize;
            hash.update(&content[start..content.len().min(start + SAMPLE_BYTES)]);
        }
    }
    Fingerprint(hash.digest128())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_header_and_content_all_count() {
        let base = vec![7u8; 100_000];
        let key = |bytes: &[u8], header| of([(bytes, header)].into_iter());
        assert_eq!(key(&base, 100), key(&base.clone(), 100));
        assert_ne!(key(&base, 100), key(&base[..99_999], 100));
        assert_ne!(key(&base, 100), key(&base, 101));
        for changed in [0, 50, 100, 50_000, 99_999] {
            let mut other = base.clone();
            other[changed] ^= 1;
            assert_ne!(key(&base, 100), key(&other, 100), "byte {changed}");
        }
    }

    #[test]
    fn an_empty_file_has_a_fingerprint() {
        assert_ne!(of([(&[][..], 0)].into_iter()), of(std::iter::empty()));
        assert_eq!(Fingerprint(0xab).to_string(), format!("{:032x}", 0xab));
    }
}

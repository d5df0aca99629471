//! How much memory a tokenizer's strings and tables take, by how the standard library and the usual
//! allocators lay them out.

/// Bytes of a hash map's table. Buckets are a power of two, at most seven eighths of them in use,
/// and each has a byte beside it.
pub(super) fn map<K, V>(entries: usize) -> usize {
    let buckets = (entries * 8).div_ceil(7).next_power_of_two().max(4);
    buckets * (size_of::<(K, V)>() + 1)
}

/// Bytes of a string's characters where they lie: whole sixteens, with what the allocator notes.
pub(super) fn string(len: usize) -> usize {
    (len + 8).next_multiple_of(16).max(32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_and_strings_are_reckoned_as_they_are_made() {
        for n in [1, 100, 1000, 70_000] {
            let made = std::collections::HashMap::<u64, u64>::with_capacity(n);
            // What it has room for is seven eighths of its buckets.
            assert!(map::<u64, u64>(n) >= made.capacity() * 17, "{n}: {}", made.capacity());
            assert!(map::<u64, u64>(n) <= made.capacity() * 17 * 8 / 7 + 17 * 8, "{n}");
        }
        assert_eq!([0, 8, 24, 25, 40].map(string), [32, 32, 32, 48, 48]);
    }
}

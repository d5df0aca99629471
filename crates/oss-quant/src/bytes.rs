//! Fixed-size pieces of byte slices.

/// The `N` bytes at `at`.
///
/// # Panics
/// When they are not all in the slice.
#[inline(always)]
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..at + N].first_chunk().expect("the slice has this length")
}

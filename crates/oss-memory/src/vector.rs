//! Vectors that may be refused: what the standard library makes of a refusal ends the process.
//!
//! For whatever grows with a model, a context or a batch. Small things are not worth an error.

use std::alloc::{Layout, alloc_zeroed};
use std::io;

use bytemuck::Zeroable;

use crate::{Error, Result};

fn refused<T>(len: usize) -> Error {
    Error::memory("allocate", len.saturating_mul(size_of::<T>()))(io::ErrorKind::OutOfMemory.into())
}

/// `len` zeros, which as a rule take no room before they are touched.
///
/// # Errors
/// When the system has not that much memory to give.
pub fn try_zeroed<T: Zeroable>(len: usize) -> Result<Vec<T>> {
    const { assert!(size_of::<T>() > 0, "no memory to ask for") };
    if len == 0 {
        return Ok(Vec::new());
    }
    let layout = Layout::array::<T>(len).map_err(|_| refused::<T>(len))?;
    // SAFETY: the layout has at least one byte.
    #[expect(unsafe_code, reason = "vectors of the standard library end the process instead")]
    let memory = unsafe { alloc_zeroed(layout) }.cast::<T>();
    if memory.is_null() {
        return Err(refused::<T>(len));
    }
    // SAFETY: `memory` comes from the allocator of vectors with the layout of `len` values, and
    // zero bytes are a value of `T`.
    #[expect(unsafe_code, reason = "the only way from memory to a vector")]
    Ok(unsafe { Vec::from_raw_parts(memory, len, len) })
}

/// Lengthens a vector with zeros until it has at least `len` of them.
///
/// # Errors
/// When the system has not that much memory to give; the vector is then as it was.
pub fn try_grow_zeroed<T: Zeroable + Clone>(vector: &mut Vec<T>, len: usize) -> Result<()> {
    let more = len.saturating_sub(vector.len());
    vector.try_reserve(more).map_err(|_| refused::<T>(len))?;
    vector.resize(vector.len() + more, T::zeroed());
    Ok(())
}

/// A copy.
///
/// # Errors
/// When the system has not that much memory to give.
pub fn try_to_vec<T: Copy>(values: &[T]) -> Result<Vec<T>> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(values.len()).map_err(|_| refused::<T>(values.len()))?;
    vector.extend_from_slice(values);
    Ok(vector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_zero_or_a_copy() {
        assert_eq!(try_zeroed::<f32>(0).expect("nothing").capacity(), 0);
        let mut vector = try_zeroed::<u32>(1 << 20).expect("4 MiB");
        assert!(vector.len() == 1 << 20 && vector.iter().all(|&x| x == 0));
        vector[7] = 3;
        try_grow_zeroed(&mut vector, (1 << 20) + 1).expect("a little more");
        assert_eq!((vector.len(), vector[7], vector.last()), ((1 << 20) + 1, 3, Some(&0)));
        try_grow_zeroed(&mut vector, 1).expect("no more");
        assert_eq!(vector.len(), (1 << 20) + 1);
        assert_eq!(try_to_vec(&vector).expect("4 MiB"), vector);
    }

    #[test]
    fn what_is_refused_is_an_error_that_tells_the_bytes() {
        let most = isize::MAX as usize / 4;
        let mut vector = vec![1u32];
        let errors = [
            try_zeroed::<u32>(most).expect_err("all that can be addressed"),
            try_zeroed::<u32>(usize::MAX).expect_err("more than can be addressed"),
            try_grow_zeroed(&mut vector, most).expect_err("all that can be addressed"),
        ];
        assert_eq!(vector, [1]);
        for (error, bytes) in errors.iter().zip([4 * most, usize::MAX, 4 * most]) {
            assert!(error.to_string().contains(&format!("allocate {bytes} bytes")), "{error}");
        }
    }
}

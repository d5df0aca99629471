#![expect(unsafe_code, reason = "numbers that are written before they are read")]

use std::mem::MaybeUninit;

/// [`std::array::from_fn`], inlined wherever it is called. The library's is not always, least where
/// a crate is compiled in several pieces, and a closure that is called loses the instruction set.
#[inline(always)]
#[must_use]
pub fn array_of<T: Copy, const N: usize>(f: impl Fn(usize) -> T) -> [T; N] {
    // Not filled with a first number: a closure that is called in two places is not inlined.
    let mut all = [MaybeUninit::uninit(); N];
    let mut index = 0;
    while index < N {
        all[index].write(f(index));
        index += 1;
    }
    // SAFETY: the loop has written all of them; a panic in it leaves nothing to drop.
    unsafe { all.as_ptr().cast::<[T; N]>().read() }
}

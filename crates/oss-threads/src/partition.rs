//! Splits mutable data into disjoint parts, one per unit of a phase.
//!
//! A [`Partition`] is made from `&mut` data right before a phase and consumed by it. Its
//! constructor checks everything that disjointness rests on; [`crate::Team::phase`] then gives each
//! unit to exactly one worker, so that no two parts that exist at the same time overlap.

mod chunks;
mod per_worker;
mod raw_slice;
mod spans;
mod tiles;

pub use chunks::Chunks;
pub use per_worker::PerWorker;
pub use spans::Spans;
pub use tiles::{RowCuts, Tile, Tiles};

/// Names the type of a partition's parts while the partition is borrowed for `'p`.
///
/// The second parameter says that the partition outlives `'p`; leave it alone. Because the body of
/// a phase must work for every `'p`, it cannot keep a part beyond its own call.
pub trait Parts<'p, Outlives = &'p Self> {
    /// What one unit gets.
    type Part;
}

/// Data that splits into disjoint parts, one per unit (or one per worker).
///
/// # Safety
/// For one value of the partition, [`Partition::part`] called with different `unit` *and* different
/// `worker` must return parts that do not alias, for every `unit < units()` and
/// `worker < workers()`; and calls that follow each other on one worker, each with its own unit,
/// must be sound when the previous part is no longer alive.
#[expect(unsafe_code, reason = "the promise of disjointness cannot be checked by the compiler")]
pub unsafe trait Partition: Sync + for<'p> Parts<'p> {
    /// Number of units that have a part; `usize::MAX` when any unit has one.
    fn units(&self) -> usize;

    /// Number of workers that may take parts; `usize::MAX` when it does not matter.
    fn workers(&self) -> usize {
        usize::MAX
    }

    /// The part of one unit, for the worker that runs it.
    ///
    /// # Safety
    /// `unit < self.units()` and `worker < self.workers()`; no unit is asked for twice; parts are
    /// asked for with one `worker` by one thread only, which drops each before it asks again.
    unsafe fn part<'p>(&'p self, unit: usize, worker: usize) -> <Self as Parts<'p>>::Part;
}

impl Parts<'_> for () {
    type Part = ();
}

// SAFETY: a part is empty, so parts never alias.
#[expect(unsafe_code, reason = "implements the unsafe trait")]
unsafe impl Partition for () {
    fn units(&self) -> usize {
        usize::MAX
    }

    unsafe fn part<'p>(&'p self, _unit: usize, _worker: usize) -> <Self as Parts<'p>>::Part {}
}

impl<'p, A: Partition> Parts<'p> for Option<A> {
    type Part = Option<<A as Parts<'p>>::Part>;
}

// SAFETY: parts are those of the partition inside, or empty.
#[expect(unsafe_code, reason = "implements the unsafe trait")]
unsafe impl<A: Partition> Partition for Option<A> {
    fn units(&self) -> usize {
        self.as_ref().map_or(usize::MAX, Partition::units)
    }

    fn workers(&self) -> usize {
        self.as_ref().map_or(usize::MAX, Partition::workers)
    }

    unsafe fn part<'p>(&'p self, unit: usize, worker: usize) -> <Self as Parts<'p>>::Part {
        // SAFETY: the caller's promise holds for the partition inside, whose counts are the same.
        self.as_ref().map(|inner| unsafe { inner.part(unit, worker) })
    }
}

macro_rules! tuple {
    ($($name:ident . $index:tt),+) => {
        impl<'p, $($name: Partition),+> Parts<'p> for ($($name,)+) {
            type Part = ($(<$name as Parts<'p>>::Part,)+);
        }

        // SAFETY: each element is a partition of other data, and gets the same unit and worker.
        #[expect(unsafe_code, reason = "implements the unsafe trait")]
        unsafe impl<$($name: Partition),+> Partition for ($($name,)+) {
            fn units(&self) -> usize {
                usize::MAX$(.min(self.$index.units()))+
            }

            fn workers(&self) -> usize {
                usize::MAX$(.min(self.$index.workers()))+
            }

            unsafe fn part<'p>(&'p self, unit: usize, worker: usize) -> <Self as Parts<'p>>::Part {
                // SAFETY: the caller's promise holds for each element, whose counts are no smaller.
                unsafe { ($(self.$index.part(unit, worker),)+) }
            }
        }
    };
}

tuple!(A.0, B.1);
tuple!(A.0, B.1, C.2);
tuple!(A.0, B.1, C.2, D.3);
tuple!(A.0, B.1, C.2, D.3, E.4);

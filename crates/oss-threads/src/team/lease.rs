//! One caller at a time.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{MutexGuard, PoisonError};

use super::phase::Body;
use super::{Inner, Team};

thread_local! {
    static TOKEN: Cell<u8> = const { Cell::new(0) };
}

/// An address that no other living thread has.
fn token() -> usize {
    TOKEN.with(|token| ptr::from_ref(token).addr())
}

/// The thread that holds a [`Lease`]; 0 when none does.
#[derive(Default)]
pub(super) struct Holder(AtomicUsize);

/// Keeps a team for the thread that holds it, for many phases in a row.
///
/// Without one, callers that share a team take turns phase by phase, and their data push each
/// other out of the caches.
pub struct Lease<'a> {
    inner: &'a Inner,
    _guard: MutexGuard<'a, ()>,
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.inner.holder.0.store(0, Ordering::Relaxed);
    }
}

impl Team {
    /// Waits until no other thread uses the team, and keeps it until the lease is dropped. Phases
    /// of this thread run as ever.
    ///
    /// # Panics
    /// When this thread holds a lease of this team already, or runs the body of a phase.
    pub fn lease(&self) -> Lease<'_> {
        Body::assert_outside();
        assert!(!self.inner.is_held_here(), "this thread holds a lease of the team already");
        let guard = self.inner.lease.lock().unwrap_or_else(PoisonError::into_inner);
        self.inner.holder.0.store(token(), Ordering::Relaxed);
        Lease { inner: &self.inner, _guard: guard }
    }
}

impl Inner {
    /// Only this thread stores its own token, so it sees it if and only if it holds the lease.
    fn is_held_here(&self) -> bool {
        self.holder.0.load(Ordering::Relaxed) == token()
    }

    /// What a phase holds while it runs: nothing more when this thread has a lease.
    pub(super) fn lease_for_phase(&self) -> Option<MutexGuard<'_, ()>> {
        let held = self.is_held_here();
        (!held).then(|| self.lease.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

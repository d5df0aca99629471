//! Bodies that are here and wait to be read: so many of them, and of their bytes, may wait.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;

use crate::app::SMALL_BODY;
use crate::options::ServerOptions;

/// Bodies that wait have at most so many times the bytes of the longest one that is taken.
const MOST_LONGEST: usize = 16;

/// The bodies of requests that the engine does not count yet.
pub(crate) struct Backlog {
    most_requests: usize,
    most_bytes: usize,
    waiting: Mutex<Waiting>,
}

/// How much waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) requests: usize,
    bytes: usize,
    /// Requests that found no room, since the server was started.
    pub(crate) refused: u64,
}

impl Backlog {
    pub(crate) fn new(options: &ServerOptions) -> Arc<Self> {
        Arc::new(Self {
            most_requests: options.max_unread,
            most_bytes: options.max_body.saturating_mul(MOST_LONGEST),
            waiting: Mutex::default(),
        })
    }

    /// Lets a body wait; `None` where there is no room. Small ones, which pass by the others, need
    /// none for their bytes.
    pub(crate) fn enter(self: &Arc<Self>, body: Bytes) -> Option<Unread> {
        let mut waiting = self.lock();
        let bytes = waiting.bytes + body.len();
        let fits = bytes <= self.most_bytes || body.len() <= SMALL_BODY;
        if !fits || waiting.requests >= self.most_requests {
            waiting.refused += 1;
            return None;
        }
        waiting.requests += 1;
        waiting.bytes = bytes;
        Some(Unread { backlog: self.clone(), body })
    }

    /// How much waits now.
    pub(crate) fn waiting(&self) -> Waiting {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Plain numbers: whatever panicked under the lock left them usable.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A body that counts as waiting for as long as this lives.
pub(crate) struct Unread {
    backlog: Arc<Backlog>,
    body: Bytes,
}

impl Deref for Unread {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.body
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let mut waiting = self.backlog.lock();
        waiting.requests -= 1;
        waiting.bytes -= self.body.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backlog(max_unread: usize) -> Arc<Backlog> {
        Backlog::new(&ServerOptions { max_unread, max_body: 10_000, ..ServerOptions::default() })
    }

    fn body(bytes: usize) -> Bytes {
        vec![b' '; bytes].into()
    }

    #[test]
    fn so_many_requests_wait_and_who_leaves_makes_room() {
        let backlog = backlog(2);
        let first = backlog.enter(body(1)).expect("room for the first");
        let second = backlog.enter(body(3)).expect("room for the second");
        assert_eq!(second.len(), 3);
        assert!(backlog.enter(body(1)).is_none());
        assert_eq!(backlog.waiting(), Waiting { requests: 2, bytes: 4, refused: 1 });
        drop(first);
        assert!(backlog.enter(body(1)).is_some());
        drop(second);
        assert_eq!(backlog.waiting(), Waiting { requests: 0, bytes: 0, refused: 1 });
    }

    #[test]
    fn long_bodies_share_room_for_sixteen_and_small_ones_pass_by() {
        let backlog = backlog(100);
        let long: Vec<_> = (0..16).map_while(|_| backlog.enter(body(10_000))).collect();
        assert_eq!(long.len(), 16);
        assert!(backlog.enter(body(SMALL_BODY + 1)).is_none());
        assert!(backlog.enter(body(SMALL_BODY)).is_some());
        drop(long);
        assert!(backlog.enter(body(10_000)).is_some());
    }
}

//! The events of one request, from the step thread to whoever asked.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use oss_model::InUse;

use crate::engine::Inner;
use crate::error::{Error, Result};
use crate::event::{Completion, End, Event, Finish};

/// What both ends of a stream share.
pub(crate) struct Link {
    queue: Mutex<Queue>,
    ready: Condvar,
    capacity: usize,
    cancelled: AtomicBool,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    waker: Option<Waker>,
    /// Threads that wait for an event: to wake nobody costs a call of the system too.
    waiting: usize,
    /// The sequence waits for room.
    paused: bool,
    /// The end has been taken.
    over: bool,
    /// That end, for who collects what is left.
    end: Option<End>,
}

impl Link {
    pub(crate) fn new(capacity: usize) -> Arc<Self> {
        let cancelled = AtomicBool::new(false);
        Arc::new(Self { queue: Mutex::default(), ready: Condvar::new(), capacity, cancelled })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A panic under this lock leaves the queue whole: only `VecDeque`'s own calls happen there.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }
}

/// The step thread's end. Dropped without an end, it ends the stream as closed.
pub(crate) struct Producer {
    link: Arc<Link>,
    ended: bool,
    /// The weights' file is not compared with its checksums meanwhile.
    _in_use: InUse,
}

impl Producer {
    pub(crate) fn new(link: Arc<Link>, in_use: InUse) -> Self {
        Self { link, ended: false, _in_use: in_use }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.link.cancelled.load(Ordering::Acquire)
    }

    /// Whether the consumer keeps up. If not, it wakes the step thread when it has.
    pub(crate) fn has_room(&self) -> bool {
        let mut queue = self.link.lock();
        queue.paused = queue.events.len() >= self.link.capacity;
        !queue.paused
    }

    /// Hands over events, leaving the vector empty.
    pub(crate) fn push(&mut self, events: &mut Vec<Event>) {
        if events.is_empty() {
            return;
        }
        self.ended |= matches!(events.last(), Some(Event::End(_)));
        let (waker, waiting) = {
            let mut queue = self.link.lock();
            queue.events.extend(events.drain(..));
            (queue.waker.take(), queue.waiting)
        };
        if waiting > 0 {
            self.link.ready.notify_all();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        if !self.ended {
            let finish = Finish::Failed(Arc::new(Error::Closed));
            let (usage, timing, report) = Default::default();
            self.push(&mut vec![Event::End(End { finish, usage, timing, report })]);
        }
    }
}

/// The events of one request: an iterator, and a `futures_core::Stream` for async code of any
/// runtime. Dropping it cancels the request within one step.
pub struct Stream {
    link: Arc<Link>,
    engine: Arc<Inner>,
    id: u64,
    prompt_ids: Arc<[u32]>,
    seed: u64,
}

impl Stream {
    pub(crate) fn new(
        link: Arc<Link>,
        engine: Arc<Inner>,
        id: u64,
        (prompt_ids, seed): (Arc<[u32]>, u64),
    ) -> Self {
        Self { link, engine, id, prompt_ids, seed }
    }

    /// The request's number in this engine, as its tracing span has it.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The tokens of the prompt.
    #[must_use]
    pub fn prompt_ids(&self) -> &[u32] {
        &self.prompt_ids
    }

    /// The seed of the draws: with it the same request gives the same answer again.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Ends the request within one step; the stream still gives what was there and the end.
    pub fn cancel(&self) {
        self.link.cancel();
        self.engine.wake();
    }

    /// The next event, waiting for it at most so long; `None` when none came or the stream is
    /// over ([`Stream::is_over`]).
    pub fn next_within(&mut self, timeout: Duration) -> Option<Event> {
        let until = Instant::now().checked_add(timeout);
        let mut queue = self.link.lock();
        loop {
            if let Some(event) = queue.events.pop_front() {
                return Some(self.taken(queue, event));
            }
            let left = until
                .map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if queue.over || left.is_zero() {
                return None;
            }
            queue.waiting += 1;
            let waited = self.link.ready.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            queue.waiting -= 1;
        }
    }

    /// Whether the end has been given.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.link.lock().over
    }

    /// The answer, waiting for its end: what has not been taken yet of its tokens, texts and calls
    /// (a call whose start was taken is left out), and how all of it ended, also where the end was
    /// taken before.
    ///
    /// # Errors
    /// What ended the request before its end.
    pub fn collect_all(self) -> Result<Completion> {
        self.collect_with(|_| {})
    }

    /// The same, each event shown first.
    pub(crate) fn collect_with(mut self, mut show: impl FnMut(&Event)) -> Result<Completion> {
        let mut completion = Completion::new(self.prompt_ids.clone(), self.seed);
        for event in &mut self {
            show(&event);
            completion.add(event);
        }
        let end = self.link.lock().end.take();
        if let Some(end) = end {
            completion.add(Event::End(end));
        }
        completion.checked()
    }

    /// Books an event that was taken and wakes a sequence that waited for room.
    fn taken(&self, mut queue: MutexGuard<'_, Queue>, event: Event) -> Event {
        if let Event::End(end) = &event {
            queue.over = true;
            queue.end = Some(end.clone());
        }
        let resume = queue.paused && queue.events.len() <= self.link.capacity / 2;
        queue.paused &= !resume;
        drop(queue);
        if resume {
            self.engine.wake();
        }
        event
    }
}

impl Iterator for Stream {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        let mut queue = self.link.lock();
        loop {
            if let Some(event) = queue.events.pop_front() {
                return Some(self.taken(queue, event));
            }
            if queue.over {
                return None;
            }
            queue.waiting += 1;
            queue = self.link.ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.waiting -= 1;
        }
    }
}

impl futures_core::Stream for Stream {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut queue = self.link.lock();
        if let Some(event) = queue.events.pop_front() {
            return Poll::Ready(Some(self.taken(queue, event)));
        }
        if queue.over {
            return Poll::Ready(None);
        }
        queue.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.is_over() {
            self.cancel();
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("id", &self.id).finish_non_exhaustive()
    }
}

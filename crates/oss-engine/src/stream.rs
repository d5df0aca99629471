//! The events of one request, from the step thread to whoever asked.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use oss_model::InUse;

use crate::engine::Inner;
use crate::error::{Error, Result};
use crate::event::{Completion, End, Event, Finish};
use crate::step::contain;

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

impl Queue {
    /// Whether there is room for events among `capacity`. Where there was none, half of them have
    /// to be taken first.
    fn has_room(&mut self, capacity: usize) -> bool {
        let held = self.events.len();
        self.paused = held >= capacity || self.paused && held > capacity / 2;
        !self.paused
    }
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

    /// Whether the consumer keeps up. If not, it wakes the step thread when it has taken half of
    /// what there is room for; until then there is none.
    pub(crate) fn has_room(&self) -> bool {
        self.link.lock().has_room(self.link.capacity)
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
            contain("a waker", || waker.wake());
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

/// The events of one request, as an iterator. Dropping it cancels the request within one step.
///
/// A request that fails after it was taken says so by the last event: its end is
/// [`Finish::Failed`], see [`End::error`].
///
/// Dropping the last stream or handle of an engine waits as dropping an [`Engine`](crate::Engine)
/// does.
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

    /// What cancels the request from elsewhere, while this thread waits for its events.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        Canceller { link: Arc::downgrade(&self.link), engine: Arc::downgrade(&self.engine) }
    }

    /// The same stream for async code.
    #[must_use]
    pub fn into_async(self) -> AsyncStream {
        AsyncStream { stream: self }
    }

    /// The next event, waiting for it at most so long; `None` when none came or the stream is
    /// over ([`Stream::is_over`]).
    pub fn next_within(&mut self, timeout: Duration) -> Option<Event> {
        // A time that no clock will show is none.
        self.next_until(Instant::now().checked_add(timeout))
    }

    /// Whether the end has been given.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.link.lock().over
    }

    /// The answer, waiting for its end: what has not been taken yet of its tokens, texts and calls
    /// (a call whose start was taken is left out), and how all of it ended, also where the end was
    /// taken before. A request that was cancelled has an answer too: what there was until then,
    /// with [`Finish::Cancelled`].
    ///
    /// # Errors
    /// What the request failed with, [`Error::Expired`] where its deadline passed. Its answer so
    /// far is lost with that: who wants it takes the events.
    pub fn collect_all(self) -> Result<Completion> {
        self.collect_with(|_| {})
    }

    /// The same, each event shown first.
    pub(crate) fn collect_with(mut self, mut show: impl FnMut(&Event)) -> Result<Completion> {
        let mut completion = self.completion();
        for event in &mut self {
            show(&event);
            completion.add(event);
        }
        self.finish(completion)
    }

    /// An answer without anything yet.
    fn completion(&self) -> Completion {
        Completion::new(self.prompt_ids.clone(), self.seed)
    }

    /// An answer to which all events were added that were left: told how it ended.
    fn finish(&self, mut completion: Completion) -> Result<Completion> {
        let end = self.link.lock().end.take();
        if let Some(end) = end {
            completion.add(Event::End(end));
        }
        completion.checked()
    }

    /// The next event, waiting for it until then, or for as long as it takes.
    fn next_until(&self, until: Option<Instant>) -> Option<Event> {
        let mut queue = self.link.lock();
        loop {
            if let Some(event) = queue.events.pop_front() {
                return Some(self.taken(queue, event));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if queue.over || left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            queue.waiting += 1;
            queue = match left {
                None => self.link.ready.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    let waited = self.link.ready.wait_timeout(queue, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            queue.waiting -= 1;
        }
    }

    /// The next event, of which `context` is told where there is none yet.
    fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut queue = self.link.lock();
        if let Some(event) = queue.events.pop_front() {
            return Poll::Ready(Some(self.taken(queue, event)));
        }
        if queue.over {
            return Poll::Ready(None);
        }
        let before = queue.waker.replace(context.waker().clone());
        drop(queue);
        // Its destructor is the program's own code: it may use this stream.
        drop(before);
        Poll::Pending
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
        self.next_until(None)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.is_over() {
            self.cancel();
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The events of one request for async code of any runtime: a `futures_core::Stream`, made by
/// [`Stream::into_async`]. Dropping it cancels the request within one step; where no other handle
/// of the engine is left, that waits as for a [`Stream`].
#[derive(Debug)]
pub struct AsyncStream {
    stream: Stream,
}

impl AsyncStream {
    /// As [`Stream::id`].
    #[must_use]
    pub fn id(&self) -> u64 {
        self.stream.id
    }

    /// As [`Stream::prompt_ids`].
    #[must_use]
    pub fn prompt_ids(&self) -> &[u32] {
        &self.stream.prompt_ids
    }

    /// As [`Stream::seed`].
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.stream.seed
    }

    /// As [`Stream::cancel`].
    pub fn cancel(&self) {
        self.stream.cancel();
    }

    /// As [`Stream::canceller`].
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        self.stream.canceller()
    }

    /// As [`Stream::is_over`].
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.stream.is_over()
    }

    /// As [`Stream::collect_all`].
    ///
    /// # Errors
    /// As [`Stream::collect_all`].
    pub async fn collect_all(self) -> Result<Completion> {
        let mut completion = self.stream.completion();
        while let Some(event) = poll_fn(|context| self.stream.poll(context)).await {
            completion.add(event);
        }
        self.stream.finish(completion)
    }
}

impl futures_core::Stream for AsyncStream {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.stream.poll(context)
    }
}

/// Cancels a request from any thread. It keeps neither the request nor the engine alive: where they
/// are over, it does nothing.
#[derive(Clone)]
pub struct Canceller {
    link: Weak<Link>,
    engine: Weak<Inner>,
}

impl Canceller {
    /// As [`Stream::cancel`].
    pub fn cancel(&self) {
        if let (Some(link), Some(engine)) = (self.link.upgrade(), self.engine.upgrade()) {
            link.cancel();
            engine.wake();
        }
    }
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Canceller").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{Event, Queue};

    #[test]
    fn a_full_queue_has_room_again_when_half_of_it_was_taken() {
        let mut queue = Queue::default();
        let mut has_room = |held: usize| {
            queue.events.resize(held, Event::Text(String::new()));
            queue.has_room(8)
        };
        assert_eq!(
            [0, 7, 8, 7, 5, 4, 7, 8].map(&mut has_room),
            [true, true, false, false, false, true, true, false]
        );
    }
}

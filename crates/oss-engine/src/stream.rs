//! The events of one request, from the step thread to its consumer.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::iter::FusedIterator;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use oss_model::InUse;

use crate::engine::{Guest, Inner};
use crate::error::{Error, Result};
use crate::event::{Completion, End, Event, FinishReason};
use crate::step::Command;
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
    /// What the request failed with: it is given in place of the end.
    failure: Option<Error>,
    /// The end has been taken.
    is_finished: bool,
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

    /// Hands over the last events and the end, or what the request failed with in its place.
    pub(crate) fn end(&mut self, mut events: Vec<Event>, end: End, failure: Option<Error>) {
        self.link.lock().failure = failure;
        events.push(Event::End(end));
        self.push(&mut events);
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
            let (usage, timing) = Default::default();
            let end = End { finish_reason: FinishReason::Cancelled, usage, timing };
            self.end(Vec::new(), end, Some(Error::Closed));
        }
    }
}

/// The events of one request, as an iterator. Dropping it cancels the request within one step, and
/// waits for nothing.
///
/// The last item is [`Event::End`], or what the request failed with after it was taken
/// ([`Error::Timeout`] where its time was over): an answer without one of the two is not whole.
///
/// An engine whose handles have gone works on for the streams that are left. It ends with the last
/// of them, in the background: who has to know that keys and values were written calls
/// [`Engine::close`](crate::Engine::close), or drops the last handle last.
pub struct Stream {
    link: Arc<Link>,
    engine: Guest,
    id: u64,
    prompt_token_ids: Arc<[u32]>,
    seed: u64,
}

impl Stream {
    pub(crate) fn new(
        link: Arc<Link>,
        engine: Arc<Inner>,
        id: u64,
        (prompt_token_ids, seed): (Arc<[u32]>, u64),
    ) -> Self {
        Self { link, engine: Guest::new(engine), id, prompt_token_ids, seed }
    }

    /// The request's number in this engine, as its tracing span has it.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The tokens of the prompt.
    #[must_use]
    pub fn prompt_token_ids(&self) -> &[u32] {
        &self.prompt_token_ids
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
    pub fn cancel_handle(&self) -> CancelHandle {
        CancelHandle { link: Arc::downgrade(&self.link), commands: self.engine.commands() }
    }

    /// The same stream for async code.
    #[must_use]
    pub fn into_async(self) -> AsyncStream {
        AsyncStream { stream: self }
    }

    /// The next event, waiting for it at most so long; `None` when none came or the stream is
    /// finished ([`Stream::is_finished`]).
    pub fn next_timeout(&mut self, timeout: Duration) -> Option<Result<Event>> {
        // A time that no clock will show is none.
        self.next_until(Instant::now().checked_add(timeout))
    }

    /// Whether the last item has been given.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.link.lock().is_finished
    }

    /// The answer, waiting for its end: what has not been taken yet of its tokens, texts and calls
    /// (a call whose start was taken is left out), and how all of it ended, also where the end was
    /// taken before. A request that was cancelled has an answer too: what there was until then,
    /// with [`FinishReason::Cancelled`].
    ///
    /// # Errors
    /// What the request failed with, [`Error::Timeout`] where its time was over. Its answer so far
    /// is lost with that: [`Stream::collect_partial`] has both.
    pub fn collect_all(self) -> Result<Completion> {
        let (completion, outcome) = self.collect_partial();
        outcome.map(|()| completion)
    }

    /// As [`Stream::collect_all`], with what there is of an answer that failed, as one whose time
    /// was over: beside the error its reason to end is [`FinishReason::Cancelled`].
    pub fn collect_partial(self) -> (Completion, Result<()>) {
        self.collect_with(|_| ControlFlow::Continue(()))
    }

    /// The same, each event shown first; where that breaks, the request is cancelled.
    pub(crate) fn collect_with(
        mut self,
        mut show: impl FnMut(&Event) -> ControlFlow<()>,
    ) -> (Completion, Result<()>) {
        let mut completion = self.completion();
        let mut shows = true;
        // What it failed with is told by its end.
        while let Some(Ok(event)) = self.next() {
            if shows && show(&event).is_break() {
                shows = false;
                self.cancel();
            }
            completion.add(event);
        }
        self.finish(completion)
    }

    /// An answer without anything yet.
    fn completion(&self) -> Completion {
        Completion::new(self.prompt_token_ids.clone(), self.seed)
    }

    /// An answer to which all events were added that were left, told how it ended, and what it
    /// failed with.
    fn finish(&self, mut completion: Completion) -> (Completion, Result<()>) {
        let mut queue = self.link.lock();
        if let Some(end) = queue.end.take() {
            completion.add(Event::End(end));
        }
        let outcome = queue.failure.take().map_or(Ok(()), Err);
        (completion, outcome)
    }

    /// The next event, waiting for it until then, or for as long as it takes.
    fn next_until(&self, until: Option<Instant>) -> Option<Result<Event>> {
        let mut queue = self.link.lock();
        loop {
            if let Some(event) = queue.events.pop_front() {
                return Some(self.taken(queue, event));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if queue.is_finished || left.is_some_and(|left| left.is_zero()) {
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
    fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        let mut queue = self.link.lock();
        if let Some(event) = queue.events.pop_front() {
            return Poll::Ready(Some(self.taken(queue, event)));
        }
        if queue.is_finished {
            return Poll::Ready(None);
        }
        let before = queue.waker.replace(context.waker().clone());
        drop(queue);
        // Its destructor is the program's own code: it may use this stream.
        drop(before);
        Poll::Pending
    }

    /// Books an event that was taken and wakes a sequence that waited for room. The end of a
    /// request that failed is the error.
    fn taken(&self, mut queue: MutexGuard<'_, Queue>, event: Event) -> Result<Event> {
        let mut failure = None;
        if let Event::End(end) = &event {
            queue.is_finished = true;
            queue.end = Some(end.clone());
            failure = queue.failure.clone();
        }
        let resume = queue.paused && queue.events.len() <= self.link.capacity / 2;
        queue.paused &= !resume;
        drop(queue);
        if resume {
            self.engine.wake();
        }
        failure.map_or(Ok(event), Err)
    }
}

impl Iterator for Stream {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Result<Event>> {
        self.next_until(None)
    }
}

impl FusedIterator for Stream {}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.is_finished() {
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
/// [`Stream::into_async`]. Dropping it cancels the request within one step, and waits for nothing.
///
/// ```
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
///
/// use oss_engine::{AsyncStream, Engine, Event, Request, Result};
///
/// async fn shout(mut stream: AsyncStream) -> Result<String> {
///     let mut answer = String::new();
///     while let Some(event) = stream.next().await {
///         if let Event::Text(text) = event? {
///             answer += &text.to_uppercase();
///         }
///     }
///     Ok(answer)
/// }
///
/// # fn main() -> Result<()> {
/// let engine = Engine::from_bytes(oss_demo::GGUF)?;
/// let request = Request::text("Once upon a time").max_tokens(4).greedy();
/// // `submit` tokenises on the thread that calls: async code calls it where it may block.
/// let mut answer = pin!(shout(engine.submit(request)?.into_async()));
/// // Any runtime does; this one asks again and again.
/// let answer = loop {
///     match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
///         Poll::Ready(answer) => break answer?,
///         Poll::Pending => std::thread::yield_now(),
///     }
/// };
/// assert_eq!(answer, ", THERE WAS A");
/// # Ok(())
/// # }
/// ```
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

    /// As [`Stream::prompt_token_ids`].
    #[must_use]
    pub fn prompt_token_ids(&self) -> &[u32] {
        &self.stream.prompt_token_ids
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

    /// As [`Stream::cancel_handle`].
    #[must_use]
    pub fn cancel_handle(&self) -> CancelHandle {
        self.stream.cancel_handle()
    }

    /// As [`Stream::is_finished`].
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.stream.is_finished()
    }

    /// The next event; `None` after the last.
    pub async fn next(&mut self) -> Option<Result<Event>> {
        poll_fn(|context| self.stream.poll(context)).await
    }

    /// As [`Stream::collect_all`].
    ///
    /// # Errors
    /// As [`Stream::collect_all`].
    pub async fn collect_all(self) -> Result<Completion> {
        let (completion, outcome) = self.collect_partial().await;
        outcome.map(|()| completion)
    }

    /// As [`Stream::collect_partial`].
    pub async fn collect_partial(mut self) -> (Completion, Result<()>) {
        let mut completion = self.stream.completion();
        while let Some(Ok(event)) = self.next().await {
            completion.add(event);
        }
        self.stream.finish(completion)
    }
}

impl futures_core::Stream for AsyncStream {
    type Item = Result<Event>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        self.stream.poll(context)
    }
}

impl futures_core::stream::FusedStream for AsyncStream {
    fn is_terminated(&self) -> bool {
        self.is_finished()
    }
}

/// Cancels a request from any thread. It keeps neither the request nor the engine alive: where they
/// are over, it does nothing.
///
/// ```
/// use oss_engine::{Engine, FinishReason, Request};
///
/// # fn main() -> oss_engine::Result<()> {
/// let engine = Engine::from_bytes(oss_demo::GGUF)?;
/// let request = Request::text("Once upon a time").ignore_eos();
/// let stream = engine.submit(request)?;
/// let handle = stream.cancel_handle();
/// std::thread::spawn(move || handle.cancel());
/// assert_eq!(stream.collect_all()?.finish_reason, FinishReason::Cancelled);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CancelHandle {
    link: Weak<Link>,
    /// Of the engine, whose end it does not put off.
    commands: Sender<Command>,
}

impl CancelHandle {
    /// As [`Stream::cancel`].
    pub fn cancel(&self) {
        if let Some(link) = self.link.upgrade() {
            link.cancel();
            let _sent = self.commands.send(Command::Wake);
        }
    }
}

impl fmt::Debug for CancelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelHandle").finish_non_exhaustive()
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

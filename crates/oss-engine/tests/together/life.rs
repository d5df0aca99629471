//! One engine's life: what is asked of it, in random order, and what comes back.

use std::time::{Duration, Instant};

use oss_engine::{
    Engine, Error, Event, Fault, FinishReason, Request, Result, Session, Stream, Token,
};
use oss_testing::Seeded;

use crate::expected::Expected;
use crate::kinds::{self, MOST};

/// The most requests at once.
const MOST_OPEN: usize = 16;
/// Tokens that requests with a fault ask for.
const FAULTY: usize = 8;

fn is_not_finite(error: &oss_model::Error) -> bool {
    matches!(error, oss_model::Error::NotFinite { .. })
}

/// A request on its way.
struct Open {
    kind: usize,
    most: usize,
    submitted: Instant,
    timeout: Option<Duration>,
    cancelled: bool,
    /// How many steps had panicked before it was submitted.
    panics_before: u64,
    stream: Stream,
    tokens: Vec<Token>,
    end: Option<Result<FinishReason>>,
}

impl Open {
    fn take(&mut self, event: Result<Event>) {
        match event {
            Ok(Event::Token(token)) => self.tokens.push(token),
            Ok(Event::End(end)) => self.end = Some(Ok(end.finish_reason)),
            Ok(_) => {}
            Err(error) => self.end = Some(Err(error)),
        }
    }

    fn take_all(&mut self) {
        while let Some(event) = self.stream.next() {
            self.take(event);
        }
    }
}

/// An engine, and who asks it.
pub(crate) struct Life<'a> {
    engine: Engine,
    /// The most rows of a step, and so the most requests in it.
    max_batched_tokens: u64,
    sessions: Vec<Session>,
    open: Vec<Open>,
    expected: &'a mut Expected,
    counts: &'a mut Counts,
    panics: u64,
    /// Requests that failed because a step panicked, those with the fault included.
    panicked: u64,
}

/// What has happened, so that a run cannot pass by doing nothing.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) operations: usize,
    pub(crate) lives: usize,
    pub(crate) answers: u64,
    ended: u64,
    cancelled: u64,
    timed_out: u64,
    refused: u64,
    not_finite: u64,
    panics: u64,
    beside_panics: u64,
    forks: u64,
    preempted: u64,
    shared: u64,
    repeated: u64,
    pub(crate) hot: u64,
    warm: u64,
    cold: u64,
    drafts: u64,
    restored: u64,
    missed_experts: u64,
}

impl Counts {
    /// What every run has some of each.
    pub(crate) fn always(&self) -> [(&'static str, u64); 4] {
        [
            ("operations", self.operations as u64),
            ("lives", self.lives as u64),
            ("answers", self.answers),
            ("hot pages", self.hot),
        ]
    }

    /// What a long run has some of each.
    pub(crate) fn all(&self) -> [(&'static str, u64); 16] {
        [
            ("ended", self.ended),
            ("cancelled", self.cancelled),
            ("timed_out", self.timed_out),
            ("refused", self.refused),
            ("not finite", self.not_finite),
            ("panics", self.panics),
            ("beside panics", self.beside_panics),
            ("forks", self.forks),
            ("preempted", self.preempted),
            ("shared prefixes", self.shared),
            ("repeated prompts", self.repeated),
            ("warm pages", self.warm),
            ("cold pages", self.cold),
            ("drafts", self.drafts),
            ("slots restored", self.restored),
            ("missed experts", self.missed_experts),
        ]
    }
}

impl<'a> Life<'a> {
    pub(crate) fn new(
        engine: Engine,
        max_batched_tokens: usize,
        expected: &'a mut Expected,
        counts: &'a mut Counts,
    ) -> Self {
        let (max_batched_tokens, sessions, open) =
            (max_batched_tokens as u64, Vec::new(), Vec::new());
        Self {
            engine,
            max_batched_tokens,
            sessions,
            open,
            expected,
            counts,
            panics: 0,
            panicked: 0,
        }
    }

    /// Something happens.
    pub(crate) fn step(&mut self, seeded: &mut Seeded) {
        self.counts.operations += 1;
        match seeded.below(22) {
            0..7 => {
                let kind = seeded.below(kinds::KINDS);
                // Now and then twice: the second one may wait for the first.
                (0..1 + seeded.below(5) / 4).for_each(|_| self.submit_some(kind, seeded));
            }
            7..13 => self.take_some(seeded),
            13..16 => self.finish_one(seeded),
            16 => self.cancel_one(seeded),
            17 => drop(self.take_open(seeded)), // cancels too
            18 => match self.sessions.len() {
                3.. => drop(self.sessions.swap_remove(seeded.below(3))),
                _ => self.sessions.push(self.engine.session()),
            },
            19..21 => self.fault(seeded),
            _ => self.fork(seeded),
        }
        while self.open.len() > MOST_OPEN {
            self.finish_one(seeded);
        }
    }

    /// Hands a request over, in a session where one is named.
    fn submit(&mut self, kind: usize, request: Request, session: Option<usize>) -> Open {
        let (most, timeout) = (request.max_tokens.expect("a limit"), request.timeout);
        let submitted = Instant::now();
        let stream = match session {
            Some(session) => self.sessions[session].submit(request),
            None => self.engine.submit(request),
        };
        Open {
            kind,
            most,
            submitted,
            timeout,
            cancelled: false,
            panics_before: self.panics,
            stream: stream.unwrap(),
            tokens: Vec::new(),
            end: None,
        }
    }

    fn submit_some(&mut self, kind: usize, seeded: &mut Seeded) {
        let most = seeded.below(MOST + 1);
        let request = Request {
            priority: seeded.below(3) as i32,
            timeout: (seeded.below(8) == 0).then(|| Duration::from_millis(seeded.below(20) as u64)),
            ..self.expected.kinds[kind].request(most)
        };
        let session = match self.sessions.len() {
            n @ 1.. if seeded.below(3) == 0 => Some(seeded.below(n)),
            _ => None,
        };
        let open = self.submit(kind, request, session);
        self.open.push(open);
    }

    fn take_open(&mut self, seeded: &mut Seeded) -> Option<Open> {
        let n = self.open.len();
        (n > 0).then(|| self.open.swap_remove(seeded.below(n)))
    }

    /// Reads a few events of one answer.
    fn take_some(&mut self, seeded: &mut Seeded) {
        let Some(mut open) = self.take_open(seeded) else { return };
        for _ in 0..seeded.below(8) {
            match open.stream.next() {
                Some(event) => open.take(event),
                None => break,
            }
        }
        self.open.push(open);
    }

    fn finish_one(&mut self, seeded: &mut Seeded) {
        if let Some(open) = self.take_open(seeded) {
            self.finish(open);
        }
    }

    fn cancel_one(&mut self, seeded: &mut Seeded) {
        if let Some(mut open) = self.take_open(seeded) {
            open.stream.cancel();
            open.cancelled = true;
            self.finish(open);
        }
    }

    /// Reads an answer to its end and holds it against the plain engine's.
    fn finish(&mut self, mut open: Open) {
        open.take_all();
        let Open { most, tokens: got, .. } = &open;
        let (kind, expected) = self.expected.of(open.kind);
        let counts = &mut *self.counts;
        match open.end.as_ref().expect("every stream has an end") {
            Ok(FinishReason::Length) => {
                assert!(got.len() == *most && !expected.ends_within(*most), "{kind:?}");
            }
            Ok(FinishReason::Stop) => {
                assert!(expected.ends_within(*most), "{kind:?}");
                assert_eq!(got.len(), expected.tokens.len(), "{kind:?}");
                counts.ended += 1;
            }
            Ok(FinishReason::Cancelled) => {
                assert!(open.cancelled, "{kind:?}");
                counts.cancelled += 1;
            }
            Err(Error::Timeout) => {
                let late = open.timeout.is_some_and(|most| open.submitted.elapsed() >= most);
                assert!(late, "{kind:?}: {:?}", open.timeout);
                counts.timed_out += 1;
            }
            Err(Error::Panicked { message }) => {
                assert!(self.panics > open.panics_before, "{kind:?}: {message}");
                self.panicked += 1;
                counts.beside_panics += 1;
            }
            other => panic!("{kind:?}: {other:?}"),
        }
        assert_eq!(*got, expected.tokens[..got.len()], "{kind:?}");
        counts.answers += 1;
    }

    /// A request that meets a fault among others. A panic fails who is in its step, and nobody else
    /// may notice anything: others' tokens, and the next request, stay right.
    fn fault(&mut self, seeded: &mut Seeded) {
        for _ in 0..seeded.below(4) {
            let kind = seeded.below(kinds::KINDS);
            self.submit_some(kind, seeded);
        }
        let kind = seeded.below(kinds::KINDS);
        let at = seeded.below(4);
        let fault = match seeded.below(8) {
            0..2 => Fault::Refused { at, times: 1 },
            2 => Fault::Unread { at, times: 1 },
            3..6 => Fault::Nan { at },
            _ => Fault::Panic { at },
        };
        let request = self.expected.kinds[kind].request(FAULTY).with_fault(fault);
        let mut open = self.submit(kind, request, None);
        open.take_all();
        let (got, (kind, expected)) = (&open.tokens, self.expected.of(kind));
        let end = expected.tokens.len().min(FAULTY);
        // No step is made for a prompt whose logits are known, and none after the answer's end.
        let may_miss = at == 0 || end <= at;
        let Some(end_of) = &open.end else { panic!("{kind:?}: no end") };
        match (fault, end_of) {
            (
                Fault::Refused { .. } | Fault::Unread { .. },
                Ok(FinishReason::Length | FinishReason::Stop),
            ) => {
                assert_eq!(got.len(), end, "{kind:?}");
                self.counts.refused += 1;
            }
            (_, Ok(FinishReason::Length | FinishReason::Stop)) if may_miss => {
                assert_eq!(got.len(), end, "{kind:?}");
            }
            (Fault::Nan { .. }, Err(error)) => {
                let is_not_finite = matches!(error, Error::Model(error) if is_not_finite(error));
                assert!(is_not_finite && got.len() == at, "{kind:?}, {fault:?}: {error}");
                self.counts.not_finite += 1;
            }
            (Fault::Panic { .. }, Err(error)) => {
                let is_panic = matches!(error, Error::Panicked { .. });
                assert!(is_panic && got.len() <= at, "{kind:?}, {fault:?}: {error}");
                self.counts.panics += 1;
                self.panics += 1;
                self.panicked += 1;
            }
            (_, other) => panic!("{kind:?}, {fault:?}: {other:?}"),
        }
        assert_eq!(*got, expected.tokens[..got.len()], "{kind:?}, {fault:?}");
        let next = seeded.below(kinds::KINDS);
        let request = self.expected.kinds[next].request(FAULTY);
        let next = self.submit(next, request, None);
        self.finish(next);
    }

    /// A conversation that goes on in two ways at once.
    fn fork(&mut self, seeded: &mut Seeded) {
        if self.sessions.is_empty() {
            self.sessions.push(self.engine.session());
        }
        let session = Some(seeded.below(self.sessions.len()));
        let (before, both) = kinds::fork(&self.expected.kinds, seeded);
        let request = self.expected.kinds[before].request(MOST);
        let open = self.submit(before, request, session);
        self.finish(open);
        for kind in both {
            let request = self.expected.kinds[kind].request(seeded.below(MOST + 1));
            let open = self.submit(kind, request, session);
            self.open.push(open);
        }
        self.counts.forks += 1;
    }

    /// Ends everything: no page is leaked, the books are in order, and no panic failed more
    /// requests than a step has rows.
    pub(crate) fn close(mut self) {
        while let Some(open) = self.open.pop() {
            self.finish(open);
        }
        self.sessions.clear();
        let Self { engine, max_batched_tokens, panics, panicked, counts, .. } = self;
        assert!(
            panicked <= panics * max_batched_tokens,
            "{panicked} requests failed by {panics} panics"
        );
        assert_eq!(engine.check_books().unwrap(), 0, "pages that nobody gave back");
        let metrics = engine.metrics();
        let tiers = metrics.tiers.counts;
        counts.lives += 1;
        counts.preempted += metrics.preempted;
        counts.shared += metrics.shared_prefixes;
        counts.repeated += metrics.repeated_prompts;
        counts.hot += tiers.hot_hits;
        counts.warm += tiers.warm_hits;
        counts.cold += tiers.cold_hits;
        counts.drafts += metrics.drafted_tokens;
        counts.restored += tiers.cold.restored_slots;
        counts.missed_experts += metrics.experts.map_or(0, |experts| experts.misses);
    }
}

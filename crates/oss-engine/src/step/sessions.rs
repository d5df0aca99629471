//! Sequences that wait for their conversation to go on.

use std::collections::HashMap;

use oss_cache::{KvCache, SequenceId};

use crate::step::common;

/// A sequence and the tokens that the cache has of it.
struct Checkpoint {
    sequence: SequenceId,
    tokens: Vec<u32>,
}

/// What a session keeps: where its last answer began, and where it ended.
#[derive(Default)]
struct Kept {
    used: u64,
    checkpoints: Vec<Checkpoint>,
}

/// The kept sequences of all sessions.
#[derive(Default)]
pub(crate) struct Sessions {
    kept: HashMap<u64, Kept>,
    clock: u64,
}

impl Sessions {
    /// Keeps a sequence for a session, besides what it has.
    pub(crate) fn keep(&mut self, session: u64, sequence: SequenceId, tokens: Vec<u32>) {
        self.clock += 1;
        let kept = self.kept.entry(session).or_default();
        kept.used = self.clock;
        kept.checkpoints.push(Checkpoint { sequence, tokens });
    }

    /// The session's sequence that has the most in common with `tokens`, shortened to that, and
    /// how long it is; at least one token is left to compute. What else it kept is given up.
    pub(crate) fn resume(
        &mut self,
        session: u64,
        tokens: &[u32],
        cache: &mut KvCache,
    ) -> Option<(SequenceId, usize)> {
        let kept = self.kept.remove(&session)?;
        let most = &tokens[..tokens.len() - 1];
        let mut best: Option<(SequenceId, usize)> = None;
        for checkpoint in kept.checkpoints {
            let (id, common) = (checkpoint.sequence, common(most, &checkpoint.tokens));
            let had = best.map_or(0, |(_, len)| len);
            let len = match common > had {
                true => cache.truncate(id, common).unwrap_or(0),
                false => 0,
            };
            let loser =
                if len > had { best.replace((id, len)).map(|(id, _)| id) } else { Some(id) };
            if let Some(loser) = loser {
                cache.remove(loser);
            }
        }
        best
    }

    /// How many of `tokens` what a session keeps has in common with them, at most.
    pub(crate) fn common(&self, session: u64, tokens: &[u32]) -> usize {
        let Some(kept) = self.kept.get(&session) else { return 0 };
        let all = kept.checkpoints.iter();
        all.map(|checkpoint| common(tokens, &checkpoint.tokens)).max().unwrap_or(0)
    }

    /// Gives up what a session kept.
    pub(crate) fn forget(&mut self, session: u64, cache: &mut KvCache) {
        for checkpoint in self.kept.remove(&session).unwrap_or_default().checkpoints {
            cache.remove(checkpoint.sequence);
        }
    }

    /// Gives up what was longest unused; `false`: nothing is kept.
    pub(crate) fn give_up_oldest(&mut self, cache: &mut KvCache) -> bool {
        let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.used).map(|(id, _)| *id);
        match oldest {
            Some(session) => self.forget(session, cache),
            None => return false,
        }
        true
    }

    /// The cache was made anew: nothing is kept any more.
    pub(crate) fn clear(&mut self) {
        self.kept.clear();
    }
}

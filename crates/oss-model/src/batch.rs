//! The rows of one step.

use crate::error::{Error, Result};
use oss_cache::{KvCache, SequenceId};

/// One token of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Whose keys and values it sees and extends.
    pub sequence: SequenceId,
    /// Where it stands in its sequence.
    pub position: usize,
    /// The token.
    pub token: u32,
    /// Whether its hidden row is wanted for the head.
    pub wanted: bool,
    /// Whether the token is a draft, which may be taken back: its keys and values are not found by
    /// other sequences before [`KvCache::accept_drafts`]. What follows a draft is one, too.
    pub draft: bool,
}

/// Rows of any mix of prompts, decoding and drafts. Rows of one sequence stand together and
/// continue it: their positions count up from its length in the cache.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The rows.
    pub rows: &'a [Row],
}

impl Batch<'_> {
    /// Refuses rows that do not continue their sequences, that stand apart from others of theirs or
    /// name no token. `sequences` has room for one a row.
    pub(crate) fn check(
        &self,
        cache: &KvCache,
        (vocabulary, max_rows): (usize, usize),
        sequences: &mut Vec<SequenceId>,
    ) -> Result<()> {
        let wrong =
            |row, what, got, expected: String| Err(Error::Batch { row, what, got, expected });
        if self.rows.len() > max_rows {
            return wrong(max_rows, "rows", self.rows.len(), format!("at most {max_rows}"));
        }
        for (i, row) in self.rows.iter().enumerate() {
            if row.token as usize >= vocabulary {
                return wrong(i, "token", row.token as usize, format!("below {vocabulary}"));
            }
            let expected = match i.checked_sub(1).map(|before| self.rows[before]) {
                Some(before) if before.sequence == row.sequence => {
                    if before.draft && !row.draft {
                        return wrong(i, "draft", 0, "1, as the row before".to_owned());
                    }
                    before.position + 1
                }
                _ => cache.len(row.sequence),
            };
            if row.position != expected {
                return wrong(i, "position", row.position, expected.to_string());
            }
        }
        sequences.clear();
        sequences.extend(self.sequences().map(|(sequence, _)| sequence));
        sequences.sort_unstable();
        let Some(apart) = sequences.windows(2).find(|pair| pair[0] == pair[1]) else {
            return Ok(());
        };
        let is_its = |row: &Row| row.sequence == apart[0];
        let last = self.rows.iter().rposition(is_its).unwrap_or_default();
        let end = self.rows[..=last].iter().rposition(|row| !is_its(row)).unwrap_or_default();
        let before = self.rows[..end].iter().rposition(is_its).unwrap_or_default();
        wrong(end + 1, "row before of its sequence", before, end.to_string())
    }

    /// Where runs of at most `most` rows of one sequence begin, and the end of the last.
    pub(crate) fn split(&self, most: usize, splits: &mut Vec<usize>) {
        splits.clear();
        let mut end = 0;
        for rows in self.rows.chunk_by(|a, b| a.sequence == b.sequence) {
            splits.extend((end..end + rows.len()).step_by(most));
            end += rows.len();
        }
        splits.push(end);
    }

    /// The rows of each sequence: its id and how many there are.
    pub(crate) fn sequences(&self) -> impl Iterator<Item = (SequenceId, usize)> {
        self.rows
            .chunk_by(|a, b| a.sequence == b.sequence)
            .map(|rows| (rows[0].sequence, rows.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oss_cache::{Group, Shape};

    #[test]
    fn rows_of_a_sequence_that_stand_apart_are_refused() {
        let groups = vec![Group { layers: vec![0], window: None }];
        let shape = Shape { page_tokens: 16, n_kv_heads: 1, head_dim: 4, slot_bytes: 64, groups };
        let mut cache = KvCache::new(shape, 1 << 20).unwrap();
        let (one, other) = (cache.create(), cache.create());
        let row =
            |sequence, position| Row { sequence, position, token: 0, wanted: false, draft: false };
        let check = |rows: &[Row]| Batch { rows }.check(&cache, (1, 8), &mut Vec::new());
        check(&[row(one, 0), row(one, 1), row(other, 0)]).unwrap();
        let apart = [row(one, 0), row(one, 1), row(other, 0), row(one, 0)];
        let error = check(&apart).unwrap_err().to_string();
        assert_eq!(error, "batch row 3: row before of its sequence: got 1, expected 2");
    }
}

//! What answers of chats and completions have in common: a head, choices and counts.

use serde::Serialize;

use crate::read::Common;
use crate::sse::Out;
use crate::write::usage::WireUsage;
use crate::{clock, ids};

/// Which engine answers: the same one gives the same tokens for the same seed.
const FINGERPRINT: &str = concat!("oss-engine-", env!("CARGO_PKG_VERSION"));

/// What every chunk and the whole answer begin with.
#[derive(Serialize)]
pub(crate) struct Head {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    system_fingerprint: &'static str,
    #[serde(skip)]
    include_usage: bool,
}

/// A chunk, or a whole answer.
#[derive(Serialize)]
struct Body<'a, C> {
    #[serde(flatten)]
    head: &'a Head,
    choices: &'a [C],
    /// Null in all chunks but the last, where usage was asked for at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<WireUsage>>,
}

impl Head {
    /// The head of an answer of this kind, whose name begins with `prefix`.
    pub(crate) fn new(prefix: &str, object: &'static str, common: &Common, model: &str) -> Self {
        Self {
            id: format!("{prefix}-{}", ids::unique()),
            object,
            created: clock::unix_seconds(),
            model: model.to_owned(),
            system_fingerprint: FINGERPRINT,
            include_usage: common.include_usage,
        }
    }

    /// Sends a chunk with one part of a choice, or has it added to the whole where nobody hears it.
    pub(crate) fn put<P: Serialize>(&self, part: P, out: Option<&mut Out>, add: impl FnOnce(P)) {
        let Some(out) = out else { return add(part) };
        let usage = self.include_usage.then_some(None);
        out.data(&Body { head: self, choices: &[part], usage });
    }

    /// Sends what comes behind the last part.
    pub(crate) fn close(&self, usage: WireUsage, out: &mut Out) {
        if self.include_usage {
            out.data(&Body::<()> { head: self, choices: &[], usage: Some(Some(usage)) });
        }
        out.raw("[DONE]");
    }

    /// The whole answer.
    pub(crate) fn whole(&self, choices: &[impl Serialize], usage: WireUsage) -> String {
        let whole = Body { head: self, choices, usage: Some(Some(usage)) };
        serde_json::to_string(&whole).expect("wire types are JSON")
    }
}

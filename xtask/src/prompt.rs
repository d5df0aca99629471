//! Prompts for synthetic models, which know no words.

use std::ops::Range;

/// Tokens as `--prompt-ids` takes them: no two of some thousand in a row are the same, and each
/// place has its own, whatever the prompt begins with.
pub(crate) fn ids(places: Range<usize>) -> String {
    let ids = places.map(|place| (place * 7919 % 2000 + 20).to_string());
    ids.collect::<Vec<_>>().join(",")
}

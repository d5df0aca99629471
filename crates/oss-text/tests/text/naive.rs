//! Byte-pair encoding as its definition says, slowly.

use std::collections::HashMap;

/// Merges the adjacent pair of the best rank, the leftmost of equals, until none is left.
pub(crate) fn merge<R: PartialOrd + Copy>(
    mut parts: Vec<String>,
    rank: impl Fn(&str) -> Option<R>,
) -> Vec<String> {
    loop {
        let mut best: Option<(R, usize)> = None;
        for at in 0..parts.len().saturating_sub(1) {
            if let Some(rank) = rank(&(parts[at].clone() + &parts[at + 1]))
                && best.is_none_or(|(other, _)| rank < other)
            {
                best = Some((rank, at));
            }
        }
        let Some((_, at)) = best else { return parts };
        let right = parts.remove(at + 1);
        parts[at] += &right;
    }
}

/// SentencePiece's encoding by scores, with bytes for what has no piece.
pub(crate) fn sentence_piece(text: &str, pieces: &HashMap<String, (u32, f32)>) -> Vec<u32> {
    if text.is_empty() {
        return Vec::new();
    }
    let text = format!("▁{}", text.replace(' ', "▁"));
    let characters = text.chars().map(String::from).collect();
    let parts = merge(characters, |piece| pieces.get(piece).map(|&(_, score)| -score));
    let bytes = |part: &String| -> Vec<u32> {
        let byte = |byte: u8| pieces[&format!("<0x{byte:02X}>")].0;
        match pieces.get(part) {
            Some(&(id, _)) => vec![id],
            None => part.bytes().map(byte).collect(),
        }
    };
    parts.iter().flat_map(bytes).collect()
}

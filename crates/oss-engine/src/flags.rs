//! What programs with flags say of options.

/// An error's text in which options are called by the flags that set them, for programs whose flags
/// are the names of options with dashes: `--context-len` for `context_len`. `flags` are the
/// program's, without the leading dashes.
///
/// ```
/// let said = oss_engine::with_flags("option top_p: got 2, expected 0 to 1", ["top-p"]);
/// assert_eq!(said, "--top-p: got 2, expected 0 to 1");
/// ```
#[must_use]
pub fn with_flags<'a>(message: &str, flags: impl IntoIterator<Item = &'a str>) -> String {
    flags.into_iter().fold(message.to_owned(), |message, flag| {
        let option = flag.replace('-', "_");
        // A part of an option may have a flag of its own.
        let part = flag.replacen('-', ".", 1).replace('-', "_");
        let message = named(&message, &format!("`{option}`"), &format!("--{flag}"));
        let message = named(&message, &format!("`{part}`"), &format!("--{flag}"));
        message
            .replace(&format!("sampling option {option}: "), &format!("--{flag}: "))
            .replace(&format!("option {option}: "), &format!("--{flag}: "))
            .replace(&format!("option {option}."), &format!("--{flag}: "))
    })
}

/// Quoted names made flags, but for those that are said to be fields: of a file.
fn named(message: &str, quoted: &str, flag: &str) -> String {
    let mut said = String::with_capacity(message.len());
    for piece in message.split_inclusive(quoted) {
        match piece.strip_suffix(quoted) {
            Some(before) if !before.ends_with("field ") => said.extend([before, flag]),
            _ => said.push_str(piece),
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::with_flags;

    #[test]
    fn an_error_names_the_flags_that_the_program_has() {
        let flags = ["model", "context-len", "sparse-attention", "top-p", "cold-bytes"];
        for (library, program) in [
            ("option context_len: got 0", "--context-len: got 0"),
            ("option sparse_attention.window: got 0", "--sparse-attention: window: got 0"),
            ("sampling option top_p: got 2", "--top-p: got 2"),
            ("room (`context_len`), file (`cold`)", "room (--context-len), file (`cold`)"),
            ("too small (`cold.bytes`)", "too small (--cold-bytes)"),
            ("option queue_limit: got 0", "option queue_limit: got 0"),
            ("a.json: missing field `model`", "a.json: missing field `model`"),
        ] {
            assert_eq!(with_flags(library, flags), program);
        }
    }
}

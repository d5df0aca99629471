//! The crate's one error type.

/// What can go wrong between bytes and tokens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `tokenizer.json` (or its companion) is not what the format says.
    #[error("{file} cannot be read: {reason}")]
    Json {
        /// The file's customary name, such as `tokenizer.json`.
        file: &'static str,
        /// What the JSON reader found wrong.
        reason: String,
    },
    /// The vocabulary names a tokenizer family that this crate does not build.
    #[error("tokenizer model `{got}` is not supported, expected one of: {expected}")]
    UnknownModel {
        /// The name in the file.
        got: String,
        /// The names that work, separated by commas.
        expected: String,
    },
    /// The vocabulary names a pre-tokeniser that this crate does not know, or none.
    #[error("pre-tokeniser `{got}` is not supported, expected one of: {expected}{}", remedy(got))]
    UnknownPreTokeniser {
        /// The name in the file, empty where it has none.
        got: String,
        /// The names that work, separated by commas.
        expected: String,
    },
    /// Two arrays of the vocabulary that belong together have different lengths.
    #[error("vocabulary array `{array}` has {got} entries, expected {expected}")]
    ArrayLength {
        /// The array's name.
        array: &'static str,
        /// Entries found.
        got: usize,
        /// Entries expected: the number of tokens.
        expected: usize,
    },
    /// A merge rule cannot be used.
    #[error("merge {index} is `{got}`, expected two tokens of the vocabulary and a space between")]
    Merge {
        /// The rule's place in the array.
        index: usize,
        /// The rule as found.
        got: String,
    },
    /// A token id that a setting names is outside the vocabulary.
    #[error("the {role} token has id {got}, expected an id below {expected}")]
    TokenId {
        /// What the token is for: `bos`, `eos`, `unknown`.
        role: &'static str,
        /// The id found.
        got: u32,
        /// The size of the vocabulary.
        expected: usize,
    },
    /// A token is longer than any that text could give.
    #[error("token {id} has {got} bytes, expected at most {expected}")]
    TokenLength {
        /// The token's id.
        id: usize,
        /// Its length in bytes.
        got: usize,
        /// The largest length.
        expected: usize,
    },
    /// The `tokenizers` crate refused the pieces.
    #[error("the tokenizer cannot be built: {reason}")]
    Build {
        /// Its message.
        reason: String,
    },
    /// A token that the harmony format needs is not in the vocabulary.
    #[error("the vocabulary has no special token `{expected}`, which the harmony format needs")]
    NoHarmonyToken {
        /// The token's name.
        expected: &'static str,
    },
    /// A chat template cannot be parsed.
    #[error("the chat template cannot be read: {reason}")]
    TemplateSyntax {
        /// The template engine's message, with the line.
        reason: String,
    },
    /// A chat template failed while it ran.
    #[error("the chat template failed: {reason}")]
    TemplateRender {
        /// The template engine's message, with the line.
        reason: String,
    },
    /// A chat template refused the conversation by `raise_exception`.
    #[error("the chat template refuses the conversation: {message}")]
    TemplateRefusal {
        /// The template's own words.
        message: String,
    },
    /// The conversation holds so many characters of private use that too few are left to stand in
    /// it for those of control tokens.
    #[error(
        "the conversation leaves {got} private-use characters from U+F0000 on unused, expected at \
         least {expected}"
    )]
    NoStandIns {
        /// Characters that it leaves.
        got: usize,
        /// Characters that are needed.
        expected: usize,
    },
    /// A part of the conversation is so long and so deep that its layout in a prompt would be far
    /// longer.
    #[error("{field}: got values of {got} levels in all, expected at most {expected}")]
    Levels {
        /// The part: `tools`, `messages` (arguments of calls) or `chat_template_kwargs`.
        field: &'static str,
        /// Its values, each counted once for each level that it lies deep.
        got: usize,
        /// The most of them.
        expected: usize,
    },
    /// A message lacks what its role needs.
    #[error("message {index} ({role}) has no {expected}")]
    Message {
        /// The message's place in the conversation.
        index: usize,
        /// Its role.
        role: &'static str,
        /// What is missing.
        expected: &'static str,
    },
}

/// What to do about a pre-tokeniser's name that names none.
fn remedy(got: &str) -> &'static str {
    match got {
        "" | "default" => {
            "; the file's `tokenizer.ggml.pre` does not say how text is split into words: give it \
             the name that suits the model (`gguf-new-metadata --pre-tokenizer NAME IN OUT`), or \
             convert the model again"
        }
        _ => "",
    }
}

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

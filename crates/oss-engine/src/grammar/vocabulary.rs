//! A model's tokens as bytes in a tree, and grammars compiled for them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use llguidance::Logger;
use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::earley::perf::ParserPerfCounters;
use llguidance::earley::{Parser, SlicedBiasComputer};
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};
use oss_sampler::Mask;
use oss_text::Tokenizer;

use super::matcher::Matcher;
use super::{Grammar, Source, bounds, with_options};
use crate::error::{Error, Result};

/// The most states that a grammar's lexer may grow to, of one to two kilobytes each: what one
/// request can take is some hundred megabytes at worst.
const MOST_STATES: usize = 50_000;

/// Trees of tokens: one of all, and for each of the five slices, which are all tokens, two and one
/// for each slice in it.
const TREES: usize = 15;
/// All together they have the nodes and the text of so many with all tokens: some are nearly empty.
const WHOLE_TREES: usize = 7;
/// A tree has for each token, those that are not in it too, where its text lies, and its order.
const LIST_BYTES: usize = 12;
/// Nodes, in a list that grows by doubling.
const NODE_BYTES: usize = 12;
/// While a tree is made: the text of each token by itself, and nodes with links.
const WORD_BYTES: usize = 64;
const BUILT_NODE_BYTES: usize = 24;

/// The compiler goes down a schema, and from reference to reference, with some kilobytes of stack a
/// level; `bounds` says how far. What it does not touch takes no memory.
const STACK_BYTES: usize = 64 << 20;

/// The longest reason that is told.
const LONGEST_REASON: usize = 300;

/// The tokens of one model, for grammars. Making it takes a moment with a large vocabulary, so an
/// engine makes it once, at its first grammar.
pub(crate) struct Vocabulary {
    tokens: TokEnv,
    /// Sets of tokens that are worked out beforehand, such as those that may stand in a string.
    slices: Arc<SlicedBiasComputer>,
    /// The tokens that stand for text.
    text: Mask,
}

impl Vocabulary {
    /// The tokens of a model with `size` logits; `None` where the tree has no room for them, which
    /// has it for any vocabulary that makes sense.
    pub(crate) fn new(tokenizer: &Tokenizer, size: usize) -> Option<Self> {
        catch_unwind(AssertUnwindSafe(|| Self::build(tokenizer, size))).ok()
    }

    fn build(tokenizer: &Tokenizer, size: usize) -> Self {
        let begin = Instant::now();
        let mut text = Mask::new(size);
        let word = |id: u32| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            if tokenizer.is_special(id) {
                // Grammars that name it are recognised, and refused.
                return [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat();
            }
            if !bytes.is_empty() {
                text.allow(id);
            }
            bytes.to_vec()
        };
        let words: Vec<Vec<u8>> = (0..size as u32).map(word).collect();
        // Ends are the follower's business: no token is one to the compiler.
        let trie = TokTrie::from(&TokRxInfo::new(size as u32, INVALID_TOKEN), &words);
        let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::new(&tokens, &SlicedBiasComputer::json_slices());
        let slices = Arc::new(slices.expect("the slices are constants that compile"));
        tracing::info!(size, seconds = begin.elapsed().as_secs_f64(), "tokens for grammars");
        Self { tokens, slices, text }
    }

    /// Bytes that a tokenizer's tokens take, about, once they are made, with what making them takes
    /// for a moment: reckoned, so that memory can be kept for them.
    pub(crate) fn bytes_in_memory(tokenizer: &Tokenizer) -> usize {
        let size = tokenizer.vocabulary_len();
        let mut words: Vec<&[u8]> =
            (0..size as u32).filter_map(|id| tokenizer.token_bytes(id)).collect();
        words.sort_unstable();
        let text: usize = words.iter().map(|word| word.len()).sum();
        // A node of a tree is a beginning that some tokens share.
        let shared = |pair: &[&[u8]]| {
            let alike = pair[0].iter().zip(pair[1]).take_while(|(a, b)| a == b);
            alike.count()
        };
        let nodes = text - words.windows(2).map(shared).sum::<usize>();
        let lists = TREES * size * LIST_BYTES;
        let made = lists + WHOLE_TREES * (text + nodes * NODE_BYTES);
        made + size * WORD_BYTES + nodes * BUILT_NODE_BYTES
    }

    /// The tokens that stand for text: all that are not control tokens.
    pub(crate) fn text(&self) -> &Mask {
        &self.text
    }

    /// The bytes of a token that stands for text.
    pub(super) fn bytes(&self, token: u32) -> &[u8] {
        self.tokens.tok_trie().token(token)
    }

    pub(super) fn slices(&self) -> &SlicedBiasComputer {
        &self.slices
    }

    /// Compiles a grammar that came as the request's field `field`.
    ///
    /// # Errors
    /// [`Error::Grammar`]; [`Error::Memory`] where the system refuses the compiler's stack.
    pub(crate) fn compile(
        self: &Arc<Self>,
        grammar: &Grammar,
        field: &'static str,
    ) -> Result<Matcher> {
        match self.parser_aside(grammar)? {
            Ok(parser) => Ok(Matcher::new(self.clone(), parser)),
            Err(reason) => {
                let what = grammar.name();
                Err(Error::Grammar { field, what, reason: one_line(&reason) })
            }
        }
    }

    /// The parser of a grammar, or why there is none, from a thread with a stack of its own.
    fn parser_aside(&self, grammar: &Grammar) -> Result<Result<Parser, String>> {
        let refused = |cause| {
            let action = "start a thread with";
            oss_memory::Error::Memory { action, bytes: STACK_BYTES, cause }
        };
        thread::scope(|scope| {
            let builder = thread::Builder::new().name("oss-grammar".to_owned());
            let builder = builder.stack_size(STACK_BYTES);
            let compiler = builder.spawn_scoped(scope, || self.parser(grammar)).map_err(refused)?;
            // Some schemas trip the compiler up.
            Ok(compiler.join().unwrap_or_else(|_| Err("the compiler failed".to_owned())))
        })
    }

    fn parser(&self, grammar: &Grammar) -> Result<Parser, String> {
        let source = match &grammar.0 {
            Source::Json { schema, lenient } => {
                bounds::check(schema)?;
                TopLevelGrammar::from_json_schema(with_options(schema, *lenient))
            }
            Source::Regex(expression) => TopLevelGrammar::from_regex(expression),
            Source::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
        };
        let limits = ParserLimits { max_lexer_states: MOST_STATES, ..ParserLimits::default() };
        // It writes nothing anywhere.
        let mut logger = Logger::new(0, 0);
        let (tokens, slices) = (self.tokens.clone(), self.slices.extra_lexemes());
        let compiled = GrammarInit::Serialized(source)
            .to_cgrammar(Some(tokens.clone()), &mut logger, limits.clone(), slices)
            .map_err(|error| format!("{error:#}"))?;
        self.check(compiled.lexer_spec())?;
        let counters = Arc::new(ParserPerfCounters::default());
        Parser::new(tokens, compiled, limits, counters).map_err(|error| format!("{error:#}"))
    }

    /// What the follower cannot do.
    fn check(&self, lexemes: &LexerSpec) -> Result<(), String> {
        // Nothing is taken back, but lexemes for which it could not be, those that end at a stop
        // text or after so many tokens, want a driver above the parser, which there is not.
        lexemes.check_rollback().map_err(|error| error.to_string())?;
        let trie = self.tokens.tok_trie();
        let control = (0..trie.vocab_size() as u32).filter(|id| !self.text.is_allowed(*id));
        for id in control {
            if lexemes.lexemes.iter().any(|lexeme| lexeme.contains_token(id)) {
                return Err(format!("it names the control token {}", trie.token_dbg(id)));
            }
        }
        Ok(())
    }
}

/// A reason without line breaks, cut where it is long.
fn one_line(reason: &str) -> String {
    let line = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST_REASON) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

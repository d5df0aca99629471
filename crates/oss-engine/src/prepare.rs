//! From a request to a task of the step thread; runs on the caller's thread.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use oss_sampler::Sampler;
use oss_text::Special;
use oss_text::harmony::{Parser, Tokens};

use crate::chat::ChatRequest;
use crate::chat::harmony::HarmonyOutput;
use crate::chat::template::TemplateOutput;
use crate::constraint::{Constraint, Held};
use crate::engine::Inner;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::grammar::{Follower, Harmony, Messages};
use crate::output::{Output, Plain, Silent};
use crate::request::{Prompt, Request};
use crate::step::{AtLeast, Drafter, Ends, PromptLogprobs, Task};
use crate::stop::Stopper;
use crate::stream::{Link, Producer};
use crate::text_side::Text;

/// A task, and the consumer's end of it.
pub(crate) struct Prepared {
    pub(crate) task: Box<Task>,
    pub(crate) link: Arc<Link>,
    pub(crate) prompt_token_ids: Arc<[u32]>,
    pub(crate) seed: u64,
}

/// Reads the prompt and checks everything that can be checked before the first step.
pub(crate) fn prepare(
    inner: &Inner,
    mut request: Request,
    id: u64,
    session: Option<u64>,
) -> Result<Prepared> {
    let text = &inner.text;
    let now = Instant::now();
    let submitted = request.arrival_time.map_or(now, |arrival| arrival.min(now));
    let in_use = inner.model.weights.begin_use()?;
    let ids = prompt_token_ids(text, &request.prompt)?;
    let (vocabulary, context_len) = (inner.model.config.vocabulary, inner.limits.context_len);
    // A prompt that is computed for itself alone may fill the context.
    let answer = usize::from(request.max_tokens != Some(0));
    check_prompt(&ids, vocabulary, context_len.saturating_sub(answer))?;
    let room = context_len - ids.len();
    check_counts(&request, vocabulary, room)?;
    let seed = request.sampling.seed.unwrap_or_else(random_seed);
    let mut options = request.sampling.over(text.defaults(), seed, request.logprobs);
    if options.dry.multiplier > 0.0 {
        // A format's own markers come again and again, as they have to.
        options.dry.sequence_breakers.extend(text.special_token_ids(vocabulary));
    }
    let mut sampler = Sampler::new(options, vocabulary, request.choice)?;
    sampler.prompt(&ids);
    let prompt_logprobs = request.prompt_logprobs.map(|top| PromptLogprobs::new(ids[0], top));
    let (output, opening) = output(text, &request, id)?;
    let constraint = constraint(inner, &mut request)?.map(Held::new);
    let fault = request.fault();
    let mut stop_token_ids = request.stop_token_ids;
    // A constraint may end at a token that is otherwise ignored.
    let ends = [text.stops(), &stop_token_ids].concat();
    let at_least = AtLeast::new(request.min_tokens, vocabulary, &ends);
    if !request.ignore_eos {
        stop_token_ids = ends;
    }
    let message_ends = (1..=ids.len()).filter(|end| text.ends_message(ids[end - 1])).collect();
    let ends = Ends { max_tokens: request.max_tokens.unwrap_or(room).min(room), stop_token_ids };
    let link = Link::new(inner.limits.stream_events);
    let task = Task {
        id,
        priority: request.priority,
        session,
        prompt_len: ids.len(),
        message_ends,
        tokens: ids.clone(),
        sequence: None,
        ends,
        sampler,
        constraint,
        at_least,
        drafter: inner.limits.speculates.then(|| Drafter::new(&ids)),
        output,
        opening,
        producer: Producer::new(link.clone(), in_use),
        prompt_logprobs,
        fault,
        deadline: request.timeout.and_then(|timeout| submitted.checked_add(timeout)),
        clock: crate::step::Clock::new(submitted),
        cached_tokens: 0,
        repeat: None,
        back: crate::metrics::Back::default(),
        hold: crate::step::Hold::default(),
        span: tracing::info_span!("request", id, prompt_tokens = ids.len()),
    };
    Ok(Prepared { task: Box::new(task), link, prompt_token_ids: ids.into(), seed })
}

fn prompt_token_ids(text: &Text, prompt: &Prompt) -> Result<Vec<u32>> {
    match prompt {
        Prompt::Text(prompt) => text.encode(prompt, Special::AsText),
        Prompt::WithSpecialTokens(prompt) => text.encode(prompt, Special::Parse),
        Prompt::Tokens(ids) => Ok(ids.clone()),
        Prompt::Chat(chat) => text.render(chat),
    }
}

fn check_prompt(ids: &[u32], vocabulary: usize, most: usize) -> Result<()> {
    if ids.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    if ids.len() > most {
        return Err(Error::PromptTooLong { got: ids.len(), expected: most });
    }
    match ids.iter().position(|id| *id as usize >= vocabulary) {
        None => Ok(()),
        Some(index) => Err(Error::Token { index, got: ids[index], expected: vocabulary }),
    }
}

fn check_counts(request: &Request, vocabulary: usize, room: usize) -> Result<()> {
    let check = |field, got: usize, most: usize, name: &str| match got > most {
        false => Ok(()),
        true => {
            let expected = format!("at most {name} ({most})");
            Err(Error::Option { field, got: got.to_string(), expected })
        }
    };
    let most = request.max_tokens.unwrap_or(usize::MAX);
    check("min_tokens", request.min_tokens, most, "max_tokens")?;
    check("min_tokens", request.min_tokens, room, "what the context has left")?;
    check("logprobs", request.logprobs.unwrap_or(0), vocabulary, "the vocabulary")?;
    let top = request.prompt_logprobs.unwrap_or(0);
    check("prompt_logprobs", top, vocabulary, "the vocabulary")
}

/// What decides which tokens may come: the request's own constraint, or one that its grammar and
/// its tools ask for.
fn constraint(inner: &Inner, request: &mut Request) -> Result<Option<Box<dyn Constraint>>> {
    let given = request.constraint.take();
    let Some(messages) = messages(inner, request, given.is_some())? else { return Ok(given) };
    if given.is_some() {
        return Err(Error::Conflict {
            field: "constraint",
            reason: "cannot be combined with `grammar`, strict tools or required tool calls",
        });
    }
    Ok(Some(Box::new(Follower::new(inner.vocabulary()?.clone(), messages))))
}

/// The messages that an answer may hold, where anything bounds it; a constraint of the request's
/// own sees to it itself that nothing is called.
fn messages(inner: &Inner, request: &Request, has_own: bool) -> Result<Option<Messages>> {
    let (text, grammar) = (&inner.text, request.grammar.as_ref());
    if let Prompt::Chat(chat) = &request.prompt {
        if text.is_harmony() {
            let forbids = chat.forbids_calls() && !has_own;
            if grammar.is_none() && !chat.bounds_answer() && !forbids {
                return Ok(None);
            }
            let (vocabulary, tokenizer) = (inner.vocabulary()?, text.tokenizer()?);
            let tokens = Tokens::of(tokenizer)?;
            let stop_token_ids = &request.stop_token_ids;
            let harmony = Harmony { vocabulary, tokenizer, tokens, chat, stop_token_ids };
            return harmony.messages(grammar).map(Some);
        }
        if grammar.is_some() && !chat.offered_tools().is_empty() {
            return Err(Error::Unsupported {
                what: "a grammar beside tools with a chat template",
                got: format!("{} tools", chat.tools.len()),
                expected: "no tools, or tool choice none".to_owned(),
            });
        }
    }
    let Some(grammar) = grammar else { return Ok(None) };
    let compiled = inner.vocabulary()?.compile(grammar, "grammar")?;
    let ends = [text.stops(), &request.stop_token_ids].concat();
    Ok(Some(Messages::text(compiled, ends)))
}

/// Where the answer's tokens go, and the events that it begins with.
fn output(text: &Text, request: &Request, id: u64) -> Result<(Box<dyn Output>, Vec<Event>)> {
    let stop = Stopper::new(request.stop.clone(), request.min_tokens);
    let tokenizer = match text.tokenizer() {
        Ok(tokenizer) => tokenizer,
        Err(_) if request.stop.is_empty() => return Ok((Box::new(Silent), Vec::new())),
        Err(error) => return Err(error),
    };
    let Prompt::Chat(chat) = &request.prompt else {
        let plain = Plain::new(tokenizer, stop, request.skip_special_tokens);
        return Ok((Box::new(plain), Vec::new()));
    };
    // Names of calls are unlike those of other engines and earlier runs.
    let prefix = format!("call_{:08x}{id:x}_", RandomState::new().hash_one(id) as u32);
    if !text.is_harmony() {
        let tools = chat.offered_tools();
        let mut output = TemplateOutput::new(tokenizer, tools, stop, prefix);
        // What is shown fits the grammar.
        if request.grammar.is_some() {
            output = output.keeping_space();
        }
        return Ok((Box::new(output), Vec::new()));
    }
    let mut output =
        HarmonyOutput::new(Parser::new(tokenizer)?, chat.offered_tools(), stop, prefix);
    let header = |chat: &ChatRequest| -> Result<Vec<u32>> {
        Ok(chat.forced_header(tokenizer, Tokens::of(tokenizer)?))
    };
    let opening = output.prime(&header(chat)?);
    Ok((Box::new(output), opening))
}

/// A seed that nobody can foresee; the standard library seeds its hash maps by it.
fn random_seed() -> u64 {
    RandomState::new().hash_one(0_u64)
}

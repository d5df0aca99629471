//! The requests: prompts, how tokens are drawn, and what bounds an answer.

use oss_engine::{Constraint, Dry, Grammar, Mask, Request, Result, Sampling};
use oss_testing::Seeded;
use serde_json::json;

/// The longest answer.
pub(crate) const MOST: usize = 24;
/// Requests that differ in what they ask for.
pub(crate) const KINDS: usize = 48;
/// Tokens that prompts are made of: few, so that answers repeat themselves and guesses come true.
const ALPHABET: usize = 12;

/// One of the requests.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    prompt: Vec<u32>,
    sampling: Sampling,
    bound: Bound,
    /// The kind whose answer the prompt goes on from.
    follows: Option<usize>,
}

/// What an answer has to be.
#[derive(Clone, Debug)]
enum Bound {
    Free,
    Grammar(Grammar),
    /// As [`Moving`] has it, among so many tokens.
    Moving(usize),
}

impl Kind {
    /// The request for at most so many tokens.
    pub(crate) fn request(&self, tokens: usize) -> Request {
        let request = Request {
            sampling: self.sampling.clone(),
            logprobs: Some(4),
            ignore_eos: true,
            ..Request::tokens(self.prompt.clone()).max_tokens(tokens)
        };
        match &self.bound {
            Bound::Free => request,
            Bound::Grammar(grammar) => request.grammar(grammar.clone()),
            Bound::Moving(vocabulary) => request.constrained(Moving::new(*vocabulary)),
        }
    }
}

/// Two kinds that go on differently from the same answer, and the kind whose answer that is.
pub(crate) fn fork(kinds: &[Kind], seeded: &mut Seeded) -> (usize, [usize; 2]) {
    let first = 4 * seeded.below(KINDS / 4) + 2;
    let before = kinds[first].follows.expect("they go on from an answer");
    (before, [first, first + 1])
}

/// Kinds of a model of so many tokens, up to several pages and windows long. Many prompts begin as
/// one another, or go on from what is answered to another. Where there is `text`, grammars bound
/// some answers.
pub(crate) fn kinds(
    seeded: &mut Seeded,
    (vocabulary, context, text): (usize, usize, bool),
    mut answer: impl FnMut(&Kind) -> Vec<u32>,
) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Vec::new();
    let mut talk = (0, Vec::new());
    for index in 0..KINDS {
        if index % 4 == 2 {
            let before = seeded.below(index);
            let answer = answer(&kinds[before]);
            let answer = &answer[..seeded.below(answer.len() + 1)];
            talk = (before, [kinds[before].prompt.as_slice(), answer].concat());
        }
        let mut prompt = match index % 4 {
            0 => Vec::new(),
            1 => {
                let earlier = &kinds[seeded.below(index)].prompt;
                earlier[..1 + seeded.below(earlier.len())].to_vec()
            }
            _ => talk.1.clone(),
        };
        let more = 1 + seeded.below([20, 60, 200][index % 3]);
        let token = |seeded: &mut Seeded| (300 + seeded.below(ALPHABET)) as u32 % vocabulary as u32;
        prompt.extend((0..more).map(|_| token(seeded)));
        prompt.truncate(context - MOST);
        let bound = match seeded.below(6) {
            0 if text => Bound::Grammar(grammar(seeded)),
            1 => Bound::Moving(vocabulary),
            _ => Bound::Free,
        };
        let sampling = sampling(seeded, token);
        let follows = (index % 4 > 1).then_some(talk.0);
        kinds.push(Kind { prompt, sampling, bound, follows });
    }
    kinds
}

/// Texts that repeat themselves and may be complete within [`MOST`] tokens.
fn grammar(seeded: &mut Seeded) -> Grammar {
    match seeded.below(2) {
        0 => Grammar::regex("(the (cat|dog)( sat)?, ){2,9}end"),
        _ => Grammar::json_schema(json!({
            "type": "array", "minItems": 2, "maxItems": 6, "items": {"enum": [1, 22, "a", true]},
        })),
    }
}

fn sampling(seeded: &mut Seeded, token: impl Fn(&mut Seeded) -> u32) -> Sampling {
    let seed = Some(seeded.bits() % 3);
    let temperature = (seeded.below(2) == 0).then_some(0.0);
    let sampling = Sampling { seed, temperature, ..Sampling::default() };
    match seeded.below(5) {
        0 => Sampling {
            repetition_penalty: Some(1.3),
            repeat_last_n: Some(seeded.below(40)),
            ..sampling
        },
        1 => Sampling {
            presence_penalty: Some(0.5),
            frequency_penalty: Some(0.25),
            top_k: Some(20),
            ..sampling
        },
        2 => {
            let wanted = (0..3).map(|_| (token(seeded), 6.0));
            let logit_bias = wanted.chain([(ALPHABET as u32, f32::NEG_INFINITY)]).collect();
            Sampling { logit_bias, top_p: Some(0.9), ..sampling }
        }
        3 => Sampling { dry: Some(Dry { multiplier: 0.8, ..Dry::default() }), ..sampling },
        _ => sampling,
    }
}

/// A third of all tokens may come: which one is told by the last two that came. It ends an answer
/// itself. Whoever tells it a guess that is wrong, or leaves a token out, gets other tokens and
/// another end.
struct Moving {
    last: [u32; 2],
    came: usize,
    mask: Mask,
}

impl Moving {
    /// Where an answer ends.
    const END: usize = 17;

    fn new(vocabulary: usize) -> Self {
        Self { last: [0; 2], came: 0, mask: Mask::new(vocabulary) }
    }
}

impl Constraint for Moving {
    fn mask(&mut self) -> Result<Option<&Mask>> {
        self.mask.fill(false);
        let first = (self.last[0] + 2 * self.last[1]) % 3;
        let third = (first..self.mask.vocabulary() as u32).step_by(3);
        third.for_each(|id| self.mask.allow(id));
        Ok(Some(&self.mask))
    }

    fn accept(&mut self, token: u32) {
        self.last = [self.last[1], token];
        self.came += 1;
    }

    fn is_finished(&self) -> bool {
        self.came >= Self::END
    }
}

//! Which tokens may come: the hook for grammars.

use std::ops::{Deref, DerefMut};

use oss_sampler::Mask;

use crate::error::Result;
use crate::step::contain;

/// Decides, token by token, what an answer may be: a grammar, a list of choices.
///
/// Before each draw the engine asks for the [`mask`](Constraint::mask); each drawn token is told by
/// [`accept`](Constraint::accept), and guesses at tokens never are: nothing has to be taken back.
/// All of it happens on the engine's step thread, so it should take microseconds. A constraint that
/// panics fails its own request.
///
/// The mask has to allow one of the model's stop tokens where the answer may end, unless
/// [`is_finished`](Constraint::is_finished) ends it.
///
/// ```
/// use oss_engine::{Constraint, Mask, Result};
///
/// /// Only tokens of a fixed set.
/// struct Only(Mask);
///
/// impl Constraint for Only {
///     fn mask(&mut self) -> Result<Option<&Mask>> {
///         Ok(Some(&self.0))
///     }
///     fn accept(&mut self, _token: u32) {}
/// }
/// ```
pub trait Constraint: Send {
    /// The tokens that may come next; `None`: any. The mask is of as many tokens as the model has,
    /// `engine.config().vocabulary`: a request whose mask is of another size fails.
    ///
    /// # Errors
    /// When the constraint cannot go on; the request fails with it.
    fn mask(&mut self) -> Result<Option<&Mask>>;

    /// This token comes next.
    fn accept(&mut self, token: u32);

    /// Whether this token, which ends an answer elsewhere (a stop token), would be text here and
    /// end nothing. Asked before it is accepted, and before a mask where a fewest of tokens
    /// ([`Request::min_tokens`](crate::Request::min_tokens)) is asked for.
    fn is_text(&mut self, _token: u32) -> bool {
        false
    }

    /// Whether nothing may follow: the answer ends here.
    fn is_finished(&self) -> bool {
        false
    }
}

/// A constraint on the step thread, where its destructor may panic without harm to others.
pub(crate) struct Held(Option<Box<dyn Constraint>>);

impl Held {
    pub(crate) fn new(constraint: Box<dyn Constraint>) -> Self {
        Self(Some(constraint))
    }
}

impl Deref for Held {
    type Target = dyn Constraint;

    fn deref(&self) -> &Self::Target {
        self.0.as_deref().expect("it is there until it is dropped")
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0.as_deref_mut().expect("it is there until it is dropped")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let constraint = self.0.take();
        contain("a constraint that was dropped", || drop(constraint));
    }
}

//! Which tokens may come: the hook for grammars.

use oss_sampler::Mask;

use crate::error::Result;

/// Decides, token by token, what an answer may be: a grammar, a list of choices.
///
/// Before each draw the engine asks for the [`mask`](Constraint::mask); each drawn token is told by
/// [`accept`](Constraint::accept); drafted tokens that turn out wrong are never told. All of it
/// happens on the engine's step thread, so it should take microseconds.
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
///     fn rollback(&mut self, _tokens: usize) {}
/// }
/// ```
pub trait Constraint: Send {
    /// The tokens that may come next; `None`: any.
    ///
    /// # Errors
    /// When the constraint cannot go on; the request fails with it.
    fn mask(&mut self) -> Result<Option<&Mask>>;

    /// This token comes next.
    fn accept(&mut self, token: u32);

    /// Takes back the last `tokens` accepted tokens. The engine has no need of it: it is for those
    /// who look ahead with a constraint themselves.
    fn rollback(&mut self, tokens: usize);

    /// Whether nothing may follow: the answer ends here.
    fn is_finished(&self) -> bool {
        false
    }
}

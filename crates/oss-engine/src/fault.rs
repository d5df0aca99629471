//! Faults that tests inject into a step.

/// What goes wrong at the step that computes the request's token number `at` (from 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "fault-injection"),
    expect(unreachable_pub, dead_code, reason = "made by tests alone")
)]
pub enum Fault {
    /// A worker panics in the middle of the forward pass, when half of the layers have written
    /// their keys and values.
    Panic {
        /// How many tokens were generated before.
        at: usize,
    },
    /// Memory for the step is refused.
    Refused {
        /// How many tokens were generated before.
        at: usize,
        /// How often it is refused.
        times: usize,
    },
    /// An expert that the step needs cannot be read from its file.
    Unread {
        /// How many tokens were generated before.
        at: usize,
        /// How often it cannot.
        times: usize,
    },
    /// There the residual stream of the row that gives this token becomes NaN (of the step's first
    /// row where it is still computing the prompt), and so its keys and values in later layers.
    Nan {
        /// How many tokens were generated before.
        at: usize,
    },
}

/// The fault of a request, where it has one.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Injected(Option<Fault>);

impl Injected {
    #[cfg(feature = "fault-injection")]
    pub(crate) fn new(fault: Fault) -> Self {
        Self(Some(fault))
    }

    pub(crate) fn get(self) -> Option<Fault> {
        self.0
    }
}

//! Faults that tests inject into a step.

/// What goes wrong at the step that computes the request's token number `at` (from 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "fault-injection"),
    expect(unreachable_pub, reason = "made by tests alone")
)]
pub enum Fault {
    /// The step panics.
    Panic {
        /// How many tokens were generated before.
        at: usize,
    },
    /// Memory for the step is refused.
    #[cfg_attr(not(feature = "fault-injection"), expect(dead_code, reason = "made by tests alone"))]
    Refused {
        /// How many tokens were generated before.
        at: usize,
        /// How often it is refused.
        times: usize,
    },
    /// The step's logits of this request are NaN.
    Nan {
        /// How many tokens were generated before.
        at: usize,
    },
}

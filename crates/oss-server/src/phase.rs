//! Where a server is between its start and its end.

/// What a server does with requests. It only ever moves down this list, apart from `Failed`, which
/// may come at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The model is being loaded: every request is told to come again.
    Loading,
    /// Requests are taken.
    Ready,
    /// Routers are told to look elsewhere; requests are still taken until they have noticed.
    Draining,
    /// No request is taken; those that run go on.
    Refusing,
    /// What still runs is ended.
    Ending,
    /// Connections are closed.
    Closed,
    /// The model could not be loaded, its files are damaged, or its thread is gone.
    Failed,
}

impl Phase {
    /// Whether a new request is taken.
    #[must_use]
    pub fn takes_requests(self) -> bool {
        matches!(self, Self::Ready | Self::Draining)
    }

    /// Whether routers may send requests.
    #[must_use]
    pub fn is_healthy(self) -> bool {
        self == Self::Ready
    }

    /// The word for `/health`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Ready => "ok",
            Self::Draining | Self::Refusing | Self::Ending | Self::Closed => "draining",
            Self::Failed => "failed",
        }
    }

    /// The phase after this one when `next` is asked for: never an earlier one.
    #[must_use]
    pub(crate) fn moved_to(self, next: Self) -> Self {
        self.max(next)
    }
}

#[cfg(test)]
mod tests {
    use super::Phase;

    #[test]
    fn a_phase_never_goes_back() {
        use Phase::{Closed, Draining, Ending, Failed, Loading, Ready, Refusing};
        let all = [Loading, Ready, Draining, Refusing, Ending, Closed, Failed];
        for (index, phase) in all.into_iter().enumerate() {
            for (other, next) in all.into_iter().enumerate() {
                assert_eq!(phase.moved_to(next), all[index.max(other)]);
            }
        }
    }

    #[test]
    fn requests_are_taken_while_routers_still_have_to_notice_a_drain() {
        let of = |phase: Phase| (phase.is_healthy(), phase.takes_requests(), phase.name());
        assert_eq!(of(Phase::Loading), (false, false, "loading"));
        assert_eq!(of(Phase::Ready), (true, true, "ok"));
        assert_eq!(of(Phase::Draining), (false, true, "draining"));
        assert_eq!(of(Phase::Refusing), (false, false, "draining"));
        assert_eq!(of(Phase::Failed), (false, false, "failed"));
    }
}

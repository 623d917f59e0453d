//! The rules, and what a run has broken.

use std::collections::BTreeMap;

/// A rule that no schedule may break. The sections are those of `wire.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Rule {
    /// Nothing runs for a join without rights (sections 4 and 4.1).
    RunsByRight,
    /// No request, result or view goes to a join without rights (sections 4 and 10.1).
    SentByRight,
    /// A join that has lost its role keeps no binding and no running call (section 4).
    RightsEnd,
    /// Nothing runs for an assistant that is not bound (section 4.2).
    BoundAlone,
    /// A consent holds for the program that it was given to (section 4.11).
    Consent,
    /// One request runs at most once, in whatever form (sections 5.1 and 10.1).
    OneRun,
    /// A call has exactly one outcome.
    OneOutcome,
    /// An outcome that says that nothing ran is true.
    MayHaveRun,
    /// Nothing starts after the stop of its call, or its end (section 5.4).
    NothingAfterStop,
    /// A call does not end before its time while its caller is present (sections 5.5 and 10.1).
    StopsWithCause,
    /// A departed assistant is unbound, and its calls are stopped, when its grace period is over (sections 4.2, 5.5).
    GraceEnds,
    /// After the faults, no session keeps a frame that is not acknowledged (section 5.2).
    Drained,
    /// After the faults, the client shows the views of its assistant (section 4.15).
    Views,
    /// After the faults, the assistant is bound and calls succeed (sections 4.2 and 4.7).
    Recovers,
    /// The records of two callers do not mix.
    Records,
    /// No input makes a session panic.
    Panic,
}

impl Rule {
    pub(crate) const ALL: &[Self] = &[
        Self::RunsByRight,
        Self::SentByRight,
        Self::RightsEnd,
        Self::BoundAlone,
        Self::Consent,
        Self::OneRun,
        Self::OneOutcome,
        Self::MayHaveRun,
        Self::NothingAfterStop,
        Self::StopsWithCause,
        Self::GraceEnds,
        Self::Drained,
        Self::Views,
        Self::Recovers,
        Self::Records,
        Self::Panic,
    ];

    /// Returns the rule of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|rule| format!("{rule:?}").eq_ignore_ascii_case(name))
    }
}

/// A rule, and which of the ways to break it.
pub(crate) type Breach = (Rule, &'static str);

/// What a run has broken: each breach once, with the details of its first time.
pub(crate) type Broken = BTreeMap<Breach, String>;

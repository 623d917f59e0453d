//! What runs have exercised: a rule that no run comes near is not tested, and then the test fails.

use std::{collections::BTreeMap, fmt};

use toolbridge::{Counter, Stats};

/// A situation that rules are about, as the simulation sees it from outside the sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    /// A call that another instance was asked is asked again of the next one.
    AskedAgain,
    /// Such a call ran in both instances.
    RanTwice,
    /// A process comes back under an identity that another process had meanwhile.
    InstanceReturned,
    /// A replay has as many frames on their way as it may.
    ReplayWindowFull,
    /// A person is asked again, since the tool changed after the first question.
    ConsentAskedAgain,
    /// A consent for the session is void, since the tool changed.
    ConsentVoid,
    /// An answer finds no room beside the others that its caller has not acknowledged, or in a packet.
    ResultTooLarge,
    /// The arguments of a request find no room beside those of the caller's open calls.
    ArgumentBytesFull,
    /// A Configuration of another room is heard from a peer.
    OtherRoomConfiguration,
    /// A request of another room is heard from a peer.
    OtherRoomRequest,
    /// A client's Configuration is lost on its way.
    ClientHalfLost,
    /// An assistant's Configuration is lost on its way.
    AssistantHalfLost,
    /// Streams of several senders, or several of one, come at once.
    StreamsAtOnce,
    /// A plain client answers under another sid than the one that it was asked under.
    PlainOwnerMoved,
    /// A tool that a plain assistant asked for runs while that assistant has another sid.
    PlainCallerMoved,
    /// A claim is granted.
    ClaimGranted,
    /// A claim is refused.
    ClaimRefused,
    /// A stop is sent.
    StopSent,
    /// A goodbye is heard.
    GoodbyeHeard,
    /// The work of a call goes on after a barge-in.
    LateResult,
    /// A person is asked, and says nothing.
    PersonSilent,
}

impl Reach {
    const ALL: &[Self] = &[
        Self::AskedAgain,
        Self::RanTwice,
        Self::InstanceReturned,
        Self::ReplayWindowFull,
        Self::ConsentAskedAgain,
        Self::ConsentVoid,
        Self::ResultTooLarge,
        Self::ArgumentBytesFull,
        Self::OtherRoomConfiguration,
        Self::OtherRoomRequest,
        Self::ClientHalfLost,
        Self::AssistantHalfLost,
        Self::StreamsAtOnce,
        Self::PlainOwnerMoved,
        Self::PlainCallerMoved,
        Self::ClaimGranted,
        Self::ClaimRefused,
        Self::StopSent,
        Self::GoodbyeHeard,
        Self::LateResult,
        Self::PersonSilent,
    ];
}

/// The counters that no run moves, with the reason.
const OUT_OF_REACH: &[(Counter, &str)] = &[
    (Counter::UntrustedRole, "no participant of a run may change its own attributes"),
    (Counter::UnknownType, "no application sends frames of its own in a run"),
    (Counter::FrameTooLarge, "no application sends frames of its own in a run"),
    (Counter::RegistrationRefused, "clients of a run offer what can be taken"),
    (Counter::LateDropped, "a run has fewer late results than are kept"),
];

/// The outcomes that calls must have had.
const OUTCOMES: &[&str] = &[
    "ok",
    "ambiguous",
    "busy",
    "cancelled",
    "closed",
    "detached",
    "lost",
    "not_delivered",
    "timeout",
    "too_large",
    "too_many_open",
    "unknown_tool",
    "tool:invalid_parameters",
    "tool:permission_denied",
    "tool:result_too_large",
];

/// How often each situation was there, each counter of the sessions moved, and each outcome came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reached {
    situations: BTreeMap<Reach, u64>,
    counters: BTreeMap<&'static str, u64>,
    outcomes: BTreeMap<String, u64>,
}

impl Reached {
    pub(crate) fn note(&mut self, what: Reach) {
        *self.situations.entry(what).or_default() += 1;
    }

    pub(crate) fn outcome(&mut self, word: &str) {
        *self.outcomes.entry(word.to_owned()).or_default() += 1;
    }

    pub(crate) fn count(&mut self, stats: &Stats) {
        for (name, times) in stats.iter() {
            *self.counters.entry(name).or_default() += times;
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (what, times) in &other.situations {
            *self.situations.entry(*what).or_default() += times;
        }
        for (name, times) in &other.counters {
            *self.counters.entry(name).or_default() += times;
        }
        for (word, times) in &other.outcomes {
            *self.outcomes.entry(word.clone()).or_default() += times;
        }
    }

    /// What must be reached and was not.
    pub(crate) fn missing(&self) -> Vec<String> {
        let situations = Reach::ALL.iter().filter(|it| !self.situations.contains_key(it));
        let is_out_of_reach = |it: &Counter| OUT_OF_REACH.iter().any(|(counter, _)| counter == it);
        let counters = Counter::ALL.iter().filter(|it| !is_out_of_reach(it));
        let counters = counters.filter(|it| self.counters.get(it.as_str()).is_none_or(|times| *times == 0));
        let outcomes = OUTCOMES.iter().filter(|it| !self.outcomes.contains_key(**it));
        situations
            .map(|it| format!("{it:?}"))
            .chain(counters.map(|it| format!("the counter {it}")))
            .chain(outcomes.map(|it| format!("the outcome {it}")))
            .collect()
    }
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "situations:")?;
        for what in Reach::ALL {
            writeln!(f, "{:>12} {what:?}", self.situations.get(what).unwrap_or(&0))?;
        }
        writeln!(f, "counters of the sessions:")?;
        for (name, times) in &self.counters {
            writeln!(f, "{times:>12} {name}")?;
        }
        writeln!(f, "outcomes:")?;
        for (word, times) in &self.outcomes {
            writeln!(f, "{times:>12} {word}")?;
        }
        Ok(())
    }
}

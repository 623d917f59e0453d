//! Counts the situations that runs reach. The test fails if a situation is never reached, since the rules about it
//! would be untested.

use std::{collections::BTreeMap, fmt};

use toolbridge::{Stats, session::Counter};

/// A situation that the simulation sees from outside the sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    /// A request that was sent to one instance is sent again to the next one.
    ResentToNextInstance,
    /// A call of an idempotent tool ran twice.
    RanTwice,
    /// A process rejoins with an identity that another process had taken over.
    InstanceReturned,
    /// A retransmission has as many frames in flight as it may.
    RetransmitWindowFull,
    /// A person is asked again, because the tool changed after the first question.
    ConsentAskedAgain,
    /// A consent for the session becomes void, because the tool changed.
    ConsentVoid,
    /// A result does not fit in a packet, or alongside the caller's other unacknowledged results.
    ResultTooLarge,
    /// The arguments of a request do not fit alongside those of the caller's open calls.
    ArgumentBytesFull,
    /// A Configuration that names another room is received from a peer.
    OtherRoomConfiguration,
    /// A request that names another room is received from a peer.
    OtherRoomRequest,
    /// A client's Configuration is lost.
    ClientConfigurationLost,
    /// An assistant's Configuration is lost.
    AssistantConfigurationLost,
    /// A join receives several streams at the same time.
    ConcurrentStreams,
    /// A frame is sent compressed.
    FrameCompressed,
    /// A plain client answers under another sid than the one that got the request.
    PlainOwnerRejoined,
    /// A plain assistant rejoins while a tool that it called runs.
    PlainCallerRejoined,
    /// A claim is granted.
    ClaimGranted,
    /// A claim is refused.
    ClaimRefused,
    /// A stop is sent.
    StopSent,
    /// A goodbye is received.
    GoodbyeReceived,
    /// A call that continued after a barge-in reports its late result.
    LateResult,
    /// A person does not answer a consent question.
    ConsentUnanswered,
    /// An unannounced participant greets a client under the identity of an assistant that has left.
    AssistantImpersonated,
    /// An unannounced participant greets an assistant under the identity of a client that has left.
    ClientImpersonated,
    /// An app that is called by RPC answers in a packet.
    AppAnswersInPacket,
    /// It answers in the header of a stream.
    AppAnswersInHeader,
    /// It answers in the chunks of a stream.
    AppAnswersInChunks,
    /// The stream of its answer breaks the rules.
    AppBreaksStream,
    /// It answers after the call has ended.
    AppAnswersLate,
    /// It gets a ping.
    AppPinged,
    /// It gets a request that had not left before the connection was lost.
    AppAskedAgain,
    /// Its calls are lost while the room lists it: it has answered no ping.
    AppLostByPings,
    /// An answer to an open call by RPC is forged.
    AnswerForged,
    /// A packet is refused for want of room.
    PacketRefused,
    /// A lossy packet is lost on a link whose packets are delayed by chance.
    LostAmongDelayed,
    /// A participant sends five answers by RPC at the same time.
    AnswersInterleaved,
}

impl Reach {
    const ALL: &[Self] = &[
        Self::ResentToNextInstance,
        Self::RanTwice,
        Self::InstanceReturned,
        Self::RetransmitWindowFull,
        Self::ConsentAskedAgain,
        Self::ConsentVoid,
        Self::ResultTooLarge,
        Self::ArgumentBytesFull,
        Self::OtherRoomConfiguration,
        Self::OtherRoomRequest,
        Self::ClientConfigurationLost,
        Self::AssistantConfigurationLost,
        Self::ConcurrentStreams,
        Self::FrameCompressed,
        Self::PlainOwnerRejoined,
        Self::PlainCallerRejoined,
        Self::ClaimGranted,
        Self::ClaimRefused,
        Self::StopSent,
        Self::GoodbyeReceived,
        Self::LateResult,
        Self::ConsentUnanswered,
        Self::AssistantImpersonated,
        Self::ClientImpersonated,
        Self::AppAnswersInPacket,
        Self::AppAnswersInHeader,
        Self::AppAnswersInChunks,
        Self::AppBreaksStream,
        Self::AppAnswersLate,
        Self::AppPinged,
        Self::AppAskedAgain,
        Self::AppLostByPings,
        Self::AnswerForged,
        Self::PacketRefused,
        Self::LostAmongDelayed,
        Self::AnswersInterleaved,
    ];
}

/// The situations that only the extras of schedules reach.
const OF_EXTRAS: &[Reach] = &[Reach::PacketRefused, Reach::LostAmongDelayed, Reach::AnswersInterleaved];

/// The counters that no run increments, with the reason.
const OUT_OF_REACH: &[(Counter, &str)] = &[
    (Counter::UntrustedRole, "no participant of a run may change its own attributes"),
    (Counter::UnknownType, "no application sends frames of its own in a run"),
    (Counter::FrameTooLarge, "no application sends frames of its own in a run"),
    (Counter::RegistrationRefused, "clients of a run offer valid tools only"),
    (Counter::LateDropped, "a run has fewer late results than are kept"),
    (Counter::Encrypted, "no room of a run is encrypted"),
    (Counter::NotEncrypted, "no room of a run is encrypted"),
    (Counter::Undecryptable, "no room of a run is encrypted"),
    (Counter::StreamChanged, "a transport of a run joins the parts of a stream by their sender"),
    (Counter::ReportRefused, "no assistant of a run reports calls of another system"),
];

/// The outcomes that the runs must reach.
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

/// How often each situation, each counter of the sessions and each outcome was reached.
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

    pub(crate) fn outcome(&mut self, name: &str) {
        *self.outcomes.entry(name.to_owned()).or_default() += 1;
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
        for (name, times) in &other.outcomes {
            *self.outcomes.entry(name.clone()).or_default() += times;
        }
    }

    /// Returns what must be reached and was not. `extras`: also what only the extras of schedules reach.
    pub(crate) fn missing(&self, extras: bool) -> Vec<String> {
        let situations = Reach::ALL.iter().filter(|it| !self.situations.contains_key(it));
        let situations = situations.filter(|it| extras || !OF_EXTRAS.contains(it));
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
        for (name, times) in &self.outcomes {
            writeln!(f, "{times:>12} {name}")?;
        }
        Ok(())
    }
}

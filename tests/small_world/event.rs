//! What may happen in the small world, one step at a time.

use std::fmt;

/// An identity in the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Seat {
    /// The client.
    Phone,
    /// The first assistant.
    A,
    /// The second assistant.
    B,
}

impl Seat {
    pub(crate) const ALL: [Self; 3] = [Self::Phone, Self::A, Self::B];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Phone => "phone",
            Self::A => "a",
            Self::B => "b",
        }
    }

    pub(crate) fn of(identity: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|seat| seat.name() == identity)
    }
}

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Called {
    /// A tool of the client.
    Plain,
    /// A tool of the client that asks a person once per session.
    Careful,
    /// A tool of the client and of the assistants.
    Both,
    /// A prompt to the person.
    Prompt,
}

impl Called {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Careful => "careful",
            Self::Both => "both",
            Self::Prompt => "bridge.choose",
        }
    }
}

/// What the token of a stranger says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Token {
    /// No role.
    NoRole,
    /// The kind `AGENT`, and the role of an observer.
    AgentThatObserves,
}

/// One step of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Event {
    /// A new program with a session joins, with the rights of its seat.
    Enters(Seat),
    /// The last program of this seat, which lost its connection, rejoins.
    Returns(Seat),
    /// It rejoins, and its SDK reports the new local sid only after the next packets.
    ReturnsUnnoticed(Seat),
    /// Another program with the rights of an assistant joins. It makes calls by RPC alone.
    CallerEnters(Seat),
    /// It loses its connection.
    Drops(Seat),
    /// It sends its goodbye, and is still in the room.
    SaysGoodbye(Seat),
    /// The room takes its role.
    LosesRole(Seat),
    /// The room gives it its role again.
    GetsRole(Seat),
    /// The stranger joins under this identity, and greets everybody: with the instance that the identity shows, if it has
    /// seen it. `announced`: the room announces it first.
    StrangerEnters { seat: Seat, token: Token, announced: bool },
    /// The stranger leaves.
    StrangerLeaves,
    /// The stranger calls a tool, or answers the open calls and offers a tool.
    StrangerActs,
    /// The stranger calls a tool by RPC.
    StrangerCallsByRpc,
    /// The session of an assistant calls a tool.
    Calls(Seat, Called),
    /// Whoever has this seat calls a tool by RPC.
    CallsByRpc(Seat, Called),
    /// Whoever has this seat calls by RPC, with the id of the last call of any assistant.
    CallsByRpcWithUsedId(Seat),
    /// The assistant cancels its last call.
    Cancels(Seat),
    /// The assistant's turn is interrupted.
    Interrupts(Seat),
    /// The assistant shows the next state of its view, or ends it.
    Shows(Seat),
    /// The oldest tool returns.
    Answers,
    /// The oldest tool fails, with a code that otherwise means that nothing ran.
    FailsAsUnknown,
    /// The person agrees to the oldest question.
    Agrees,
    /// The next packet of this session is refused, because there is no room.
    Refuses(Seat),
    /// From here on each packet of this session is refused, because it may not publish; or no longer.
    Mutes(Seat),
    /// The next packet of this session that may be lost is lost: a lossy one, or a Configuration.
    Loses(Seat),
    /// Time passes to the next deadline of a session.
    Ticks,
    /// Six seconds pass: a grace period.
    Waits,
    /// All processes are suspended for a minute. Then several inputs come before a timer.
    Sleeps,
}

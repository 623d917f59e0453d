//! Counts the situations that schedules reach. A run that never reaches one fails, since the rules about it would be
//! untested.

use std::{collections::BTreeMap, fmt};

macro_rules! situations {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A situation that the small world sees from outside the sessions.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Reach {
            $($(#[$doc])* $name,)*
        }

        impl Reach {
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

situations! {
    /// A program rejoins.
    Rejoined,
    /// A program sends in its new join before it knows of it.
    SentBeforeItsRejoin,
    /// A session says goodbye.
    Goodbye,
    /// A participant loses its role within its join.
    RoleTaken,
    /// It gets its role again.
    RoleGivenBack,
    /// A stranger joins under an identity with rights, and is announced.
    StrangerAnnounced,
    /// A stranger sends before it is announced.
    StrangerUnannounced,
    /// An agent joins whose token has the role of an observer.
    AgentThatObserves,
    /// A stranger is shown the instance of a session.
    InstanceSeen,
    /// A stranger greets with the instance of the program whose identity it has.
    StolenInstance,
    /// A tool runs for a call by RPC.
    RunsByRpc,
    /// A participant calls by RPC after its goodbye.
    RpcAfterGoodbye,
    /// A participant calls by RPC with an id that was used.
    UsedId,
    /// A person is asked for consent.
    ConsentAsked,
    /// A person is asked for consent after another program got it.
    ConsentAskedOfOther,
    /// A packet is refused.
    PacketRefused,
    /// A packet is refused, because its sender may not publish.
    NotAllowed,
    /// All processes are suspended.
    Suspended,
    /// A packet is lost.
    PacketLost,
    /// A tool fails with a code that otherwise means that nothing ran.
    FailedAsUnknown,
    /// A call succeeds.
    CallOk,
    /// A call fails.
    CallFailed,
    /// An assistant shows a view at the end.
    ViewShown,
    /// One of two assistants that are in the room has said goodbye.
    OneOfTwoLeft,
}

/// How often each situation was reached.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reached(BTreeMap<Reach, u64>);

impl Reached {
    pub(crate) fn note(&mut self, what: Reach) {
        *self.0.entry(what).or_default() += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (what, times) in &other.0 {
            *self.0.entry(*what).or_default() += times;
        }
    }

    pub(crate) fn missing(&self) -> Vec<String> {
        Reach::ALL.iter().filter(|it| !self.0.contains_key(it)).map(|it| format!("{it:?}")).collect()
    }
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for what in Reach::ALL {
            writeln!(f, "{:>12} {what:?}", self.0.get(what).unwrap_or(&0))?;
        }
        Ok(())
    }
}

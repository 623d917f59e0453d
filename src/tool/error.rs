//! Defines why a call has no result, and why tools cannot be offered.

use std::time::Duration;

use super::{
    ErrorCode, InvalidToolName, ToolError, ToolName,
    not_offered::{NotOffered, list, shown},
};
use crate::{
    clock::{Spelled, milliseconds},
    transport::{CloseReason, Identity},
    value::EncodeError,
};

/// Why a call has no result.
///
/// Each variant names the cause, whichever participant detected it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The tool failed, or its owner refused to run it, and reported why.
    #[error("{0}")]
    Tool(ToolError),
    /// No owner was found. The tool did not run.
    #[error("{}", why.explain(tool))]
    UnknownTool {
        /// The name in the call.
        tool: Box<str>,
        /// Why no owner was found.
        why: Box<NotOffered>,
    },
    /// Several clients offer the tool and the call names none of them. It did not run.
    #[error("several clients offer {tool:?}: {owners:?}; the call must name one of them")]
    Ambiguous {
        /// The name in the call.
        tool: Box<str>,
        /// The clients that offer it.
        owners: Vec<Identity>,
    },
    /// Clients are in the room that have not registered with this assistant, because they are bound to another one,
    /// or to none because there are several. The tool did not run.
    #[error(
        "tool {tool:?} is unavailable: {} bound to another assistant, or to none because there are several{}; close the \
         others, or name this assistant in the client's option `assistant`",
        are(clients),
        in_brackets(assistants)
    )]
    NotBound {
        /// The name in the call.
        tool: Box<str>,
        /// Those clients: the one that the call names, otherwise all of them.
        clients: Vec<Identity>,
        /// The other assistants that are in the room, at most 8.
        assistants: Box<[Identity]>,
    },
    /// The request never left this process. Nothing ran, and a retry is safe.
    #[error("the request never left this process; nothing ran")]
    NotDelivered {
        /// The call's limit.
        limit: Duration,
    },
    /// The local token does not allow sending data. Nothing ran.
    #[error("the local token does not allow sending data (`canPublishData`); nothing ran")]
    NotAllowed,
    /// No result arrived within the limit. The tool may have run.
    #[error("no result within {} ms", limit.as_millis())]
    Timeout {
        /// The call's limit.
        limit: Duration,
    },
    /// The owner left and did not return in time, or its answer cannot be expected any more. The tool may have run.
    #[error("{}", why.explain(owner))]
    Lost {
        /// The participant that should have replied.
        owner: Identity,
        /// What is known of it.
        why: LossCause,
    },
    /// The call was cancelled. The tool may have run.
    #[error("the call was cancelled")]
    Cancelled,
    /// The turn was interrupted. The tool goes on, as its [`BargeIn::Finish`](crate::BargeIn::Finish) says, and nobody gets
    /// its result.
    #[error("the turn was interrupted; the tool goes on, and its result is not awaited")]
    Unawaited,
    /// The turn was interrupted and the call continues. Its result is delivered to the next turn.
    #[error("the turn was interrupted; the call continues, and its result is delivered later")]
    Detached,
    /// The turn of this call is over. The tool did not run.
    #[error("the turn is over; nothing ran")]
    TurnOver,
    /// This turn has made the same call too often. The tool did not run.
    #[error("{tool:?} was called with the same arguments {limit} times in this turn; nothing ran")]
    TooManyEqual {
        /// The name in the call.
        tool: Box<str>,
        /// How often a turn may make the same call.
        limit: u32,
    },
    /// The request is larger than the limit. The tool did not run.
    #[error("the request has {size} bytes; the limit is {limit}")]
    TooLarge {
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// Too many calls to one client are open. The tool did not run.
    #[error("{open} calls to this client are open already; wait for one to end")]
    TooManyOpen {
        /// How many are open.
        open: usize,
    },
    /// The owner is overloaded. The tool did not run.
    #[error("{owner} is busy{}; nothing ran", limit.as_ref().map(|limit| format!(": {limit}")).unwrap_or_default())]
    Busy {
        /// The owner.
        owner: Identity,
        /// Which limit is reached, as the owner says it, such as `the limit is 50 calls a second`.
        limit: Option<String>,
    },
    /// The call's limit is zero or too long. The tool did not run.
    #[error(
        "the timeout of {} ms is outside the range from 1 ms to {} ms",
        milliseconds(*asked),
        milliseconds(*maximum)
    )]
    Limit {
        /// The limit that the caller set.
        asked: Duration,
        /// The longest limit that is allowed.
        maximum: Duration,
    },
    /// The arguments could not be encoded. The tool did not run.
    #[error("the arguments cannot be encoded: {0}")]
    Arguments(#[source] EncodeError),
    /// The local participant has left the room, or was removed from it, during the call. The tool may have run.
    #[error("not in the room: {0}")]
    Closed(CloseReason),
    /// The local participant is not in the room, or left it before the request was sent or a person had
    /// allowed the call. The tool did not run.
    #[error("not in the room: {0}; nothing ran")]
    NotInRoom(CloseReason),
}

impl CallError {
    pub(crate) fn unknown_tool(tool: &str, why: NotOffered) -> Self {
        Self::UnknownTool { tool: tool.into(), why: Box::new(why) }
    }

    /// Returns the error code that events and recordings show. Each cause has its own.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Tool(error) => error.code(),
            Self::UnknownTool { .. } => ErrorCode::UNKNOWN_TOOL,
            Self::Timeout { .. } => ErrorCode::TIMEOUT,
            Self::Lost { .. } => ErrorCode::LOST,
            Self::Cancelled | Self::Unawaited | Self::TurnOver => ErrorCode::CANCELLED,
            Self::Detached => ErrorCode::from("detached"),
            Self::TooManyEqual { .. } => ErrorCode::from("too_many_equal"),
            Self::Busy { .. } | Self::TooManyOpen { .. } => ErrorCode::BUSY,
            Self::Arguments(_) | Self::Limit { .. } => ErrorCode::INVALID_PARAMETERS,
            Self::Ambiguous { .. } => ErrorCode::from("ambiguous"),
            Self::NotAllowed => ErrorCode::from("not_allowed"),
            Self::NotBound { .. } => ErrorCode::from("not_bound"),
            Self::NotDelivered { .. } => ErrorCode::from("not_delivered"),
            Self::TooLarge { .. } => ErrorCode::from("too_large"),
            Self::Closed(_) | Self::NotInRoom(_) => ErrorCode::from("closed"),
        }
    }

    /// Returns whether the tool may have run, wholly or in part. If `false`, it did not run and a retry is safe.
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::UnknownTool { .. }
            | Self::Ambiguous { .. }
            | Self::NotBound { .. }
            | Self::NotDelivered { .. }
            | Self::NotAllowed
            | Self::TooLarge { .. }
            | Self::TooManyOpen { .. }
            | Self::Busy { .. }
            | Self::Limit { .. }
            | Self::TurnOver
            | Self::TooManyEqual { .. }
            | Self::NotInRoom(_)
            | Self::Arguments(_) => false,
            Self::Tool(error) => error.may_have_run(),
            _ => true,
        }
    }
}

/// Why a call is [`Lost`](CallError::Lost): what its caller knows of the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossCause {
    /// It left the room and did not return in time.
    Left,
    /// It is in the room, and has sent nothing for this long, not even an answer to a ping: its program is blocked, or
    /// gone.
    Silent(Duration),
    /// Another run of its program has replaced the one that was asked.
    Restarted,
    /// The room took its right to be called before it had acknowledged the request.
    Dismissed,
    /// It refused the request, and does not say whether the tool ran before.
    Refused,
    /// It reported that the call is lost.
    Reported,
    /// The local participant has lost its connection to the room.
    Disconnected,
}

impl LossCause {
    fn explain(self, owner: &Identity) -> String {
        let owner = shown(owner.as_str());
        match self {
            Self::Left => format!("{owner} left before it answered"),
            Self::Silent(time) => format!(
                "{owner} is in the room, but has answered nothing for {} s: its program may be blocked, or gone",
                time.as_secs_f32()
            ),
            Self::Restarted => format!("{owner} was started again before it answered"),
            Self::Dismissed => format!("{owner} may no longer be called: the room has taken its role"),
            Self::Refused => format!("{owner} refused the call, and does not say whether it ran before"),
            Self::Reported => format!("{owner} reported that the call is lost"),
            Self::Disconnected => format!("the connection to the room was lost before {owner} answered"),
        }
    }
}

/// Becomes [`TooLarge`](CallError::TooLarge) with both numbers, or [`Arguments`](CallError::Arguments).
impl From<EncodeError> for CallError {
    fn from(error: EncodeError) -> Self {
        match error {
            EncodeError::TooLarge { size, limit } => Self::TooLarge { size, limit },
            other => Self::Arguments(other),
        }
    }
}

/// "phone is", "phone and tv are", "desk, phone, tv are".
fn are(clients: &[Identity]) -> String {
    match clients {
        [only] => format!("{} is", list(std::slice::from_ref(only), 0)),
        [one, two] => {
            format!("{} and {} are", list(std::slice::from_ref(one), 0), list(std::slice::from_ref(two), 0))
        }
        several => format!("{} are", list(several, 0)),
    }
}

/// " (helper, tutor)"; nothing if there are none.
fn in_brackets(names: &[Identity]) -> String {
    if names.is_empty() { String::new() } else { format!(" ({})", list(names, 0)) }
}

/// Why tools cannot be offered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The name is not a valid tool name.
    #[error(transparent)]
    Name(#[from] InvalidToolName),
    /// The name is reserved: `bridge.` begins names of the protocol, and `lk.` methods of LiveKit's RPC.
    #[error("{name:?} {}", if name.is_reserved() {
        "begins with `bridge.`, which is reserved for the protocol"
    } else {
        "begins with `lk.`, which is reserved for methods of LiveKit"
    })]
    Reserved {
        /// The name.
        name: ToolName,
    },
    /// The tool's method of LiveKit's RPC cannot be called.
    #[error(
        "{name:?} cannot be the method {method:?}: it needs 1 to 512 bytes, and `lk.` begins methods of LiveKit"
    )]
    RpcMethod {
        /// The name.
        name: ToolName,
        /// The method.
        method: Box<str>,
    },
    /// Two tools have the same name.
    #[error("two tools are named {name:?}; rename one, or give its source a prefix")]
    Duplicate {
        /// The name.
        name: ToolName,
    },
    /// The tool needs a person's consent, and no consent handler is set.
    #[error("{name:?} needs a person's consent, but no consent handler is set")]
    NoConsent {
        /// The name.
        name: ToolName,
    },
    /// The schema does not describe a map of arguments.
    #[error("the arguments of {name:?} are not a map: its type must be a struct with named fields")]
    NotAMap {
        /// The name.
        name: ToolName,
    },
    /// The schema cannot be used.
    #[error("the schema of {name:?} cannot be used: {reason}")]
    Schema {
        /// The name.
        name: ToolName,
        /// What is wrong with it: a text, so that the error does not depend on the validator.
        reason: String,
    },
    /// The tool asks for more time than this participant gives any call.
    #[error(
        "{name:?} asks for a time limit of {}, and a call may take {}: raise the time `longest_call` of both the client and \
         the assistant, or ask for less",
        Spelled(*patience),
        Spelled(*limit)
    )]
    Patience {
        /// The name.
        name: ToolName,
        /// The tool's [`patience`](crate::ToolOptions::patience).
        patience: Duration,
        /// The local [`Times::longest_call`](crate::Times::longest_call).
        limit: Duration,
    },
    /// A description or schema is larger than allowed.
    #[error("the {part} of {name:?} has {size} bytes; the limit is {limit}")]
    TooLarge {
        /// The name.
        name: ToolName,
        /// `description` or `schema`.
        part: &'static str,
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// More tools than allowed.
    #[error("{count} tools exceed the limit of {limit} for one participant")]
    TooMany {
        /// How many there are.
        count: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// All tools together do not fit a registration.
    #[error("the registration of all tools has {size} bytes; the limit is {limit}")]
    RegistrationTooLarge {
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_small() {
        assert_eq!(size_of::<ToolError>(), 8);
        assert!(size_of::<CallError>() <= 64, "{}", size_of::<CallError>());
    }
}

//! Why a call has no result, and why tools could not be offered.

use std::time::Duration;

use super::{
    ErrorCode, InvalidToolName, ToolError, ToolName,
    not_offered::{NotOffered, list},
};
use crate::{
    transport::{CloseReason, Identity},
    value::EncodeError,
};

/// Why a call has no result.
///
/// A failure is named by what it means, not by whose clock noticed it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The tool ran, or refused to, and said why.
    #[error("{0}")]
    Tool(ToolError),
    /// Nobody was found that offers it. It did not run.
    #[error("{}", why.explain(tool))]
    UnknownTool {
        /// The name that was asked for.
        tool: Box<str>,
        /// Why nobody was asked: `nobody offers it` is only one of the reasons.
        why: Box<NotOffered>,
    },
    /// Several offer it and none was named. It did not run.
    #[error("{tool:?} is offered by several: {owners:?}; name one with `to`")]
    Ambiguous {
        /// The name that was asked for.
        tool: Box<str>,
        /// Who offers it.
        owners: Vec<Identity>,
    },
    /// Clients are there that offer us nothing, since they listen to another assistant, or to none of several.
    /// It did not run.
    #[error("{} to another assistant, or to none of several: {tool:?} is not offered to us", listen(clients))]
    NotBound {
        /// The name that was asked for.
        tool: Box<str>,
        /// Those clients: the one that was named, else all of them.
        clients: Vec<Identity>,
    },
    /// The request never left this process: nothing ran, asking again is safe.
    #[error("the request never left this process; nothing ran")]
    NotDelivered {
        /// The call's limit.
        limit: Duration,
    },
    /// Our token does not allow us to send data: nothing ran.
    #[error("our token does not allow us to send data (`canPublishData`); nothing ran")]
    NotAllowed,
    /// No answer within the limit; it may have run.
    #[error("no answer within {} ms", limit.as_millis())]
    Timeout {
        /// The call's limit.
        limit: Duration,
    },
    /// The owner left and did not come back in time; it may have run.
    #[error("{owner} left before it answered")]
    Lost {
        /// Who should have answered.
        owner: Identity,
    },
    /// The call was cancelled; it may have run.
    #[error("the call was cancelled")]
    Cancelled,
    /// The turn was interrupted and the call left running: its result comes later, for the next turn.
    #[error("the turn was interrupted; the call goes on, and its result comes later")]
    Detached,
    /// The turn that this call belongs to is over. It did not run.
    #[error("the turn is over; nothing ran")]
    TurnOver,
    /// This turn has asked for the very same too often. It did not run.
    #[error("{tool:?} was asked for with the same arguments {limit} times in this turn; nothing ran")]
    TooManyEqual {
        /// The name that was asked for.
        tool: Box<str>,
        /// How often a turn may ask for the same.
        limit: u32,
    },
    /// The request is larger than what can be carried. It did not run.
    #[error("{size} bytes are more than the {limit} that can be carried")]
    TooLarge {
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// This many calls to one client are open already. It did not run.
    #[error("{open} calls to this client are open already; wait for one to end")]
    TooManyOpen {
        /// How many are open.
        open: usize,
    },
    /// The owner has too much to do. It did not run.
    #[error("{owner} is busy; nothing ran")]
    Busy {
        /// Who refused.
        owner: Identity,
    },
    /// The limit is zero or longer than allowed. It did not run.
    #[error("a limit of {asked:?} is not between 1 ms and {maximum:?}")]
    Limit {
        /// The limit that was asked for.
        asked: Duration,
        /// The longest allowed.
        maximum: Duration,
    },
    /// The arguments could not be encoded. It did not run.
    #[error("the arguments cannot be encoded: {0}")]
    Arguments(EncodeError),
    /// We are not in the room any more.
    #[error("not in the room: {0}")]
    Closed(CloseReason),
}

impl CallError {
    pub(crate) fn unknown_tool(tool: &str, why: NotOffered) -> Self {
        Self::UnknownTool { tool: tool.into(), why: Box::new(why) }
    }

    /// The code of the failure, as events and recordings show it: each cause has its own.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Tool(error) => error.code(),
            Self::UnknownTool { .. } => ErrorCode::UNKNOWN_TOOL,
            Self::Timeout { .. } => ErrorCode::TIMEOUT,
            Self::Lost { .. } => ErrorCode::LOST,
            Self::Cancelled | Self::TurnOver => ErrorCode::CANCELLED,
            Self::Detached => ErrorCode::from("detached"),
            Self::TooManyEqual { .. } => ErrorCode::from("too_many_equal"),
            Self::Busy { .. } | Self::TooManyOpen { .. } => ErrorCode::BUSY,
            Self::Arguments(_) | Self::Limit { .. } => ErrorCode::INVALID_PARAMETERS,
            Self::Ambiguous { .. } => ErrorCode::from("ambiguous"),
            Self::NotAllowed => ErrorCode::from("not_allowed"),
            Self::NotBound { .. } => ErrorCode::from("not_bound"),
            Self::NotDelivered { .. } => ErrorCode::from("not_delivered"),
            Self::TooLarge { .. } => ErrorCode::from("too_large"),
            Self::Closed(_) => ErrorCode::from("closed"),
        }
    }

    /// Whether the tool may have run, wholly or in part. `false` is a proof; asking again is then safe.
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
            | Self::Arguments(_) => false,
            Self::Tool(error) => {
                error.had_begun()
                    || !matches!(error.code().as_str(), "invalid_parameters" | "permission_denied" | "busy")
            }
            _ => true,
        }
    }
}

/// "phone listens", "phone and tv listen", "desk, phone, tv listen".
fn listen(clients: &[Identity]) -> String {
    match clients {
        [only] => format!("{} listens", list(std::slice::from_ref(only), 0)),
        [one, two] => format!(
            "{} and {} listen",
            list(std::slice::from_ref(one), 0),
            list(std::slice::from_ref(two), 0)
        ),
        several => format!("{} listen", list(several, 0)),
    }
}

/// Why tools could not be offered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The name is no tool name.
    #[error(transparent)]
    Name(#[from] InvalidToolName),
    /// The name is kept for the protocol.
    #[error("{name:?} begins with `bridge.`, which is kept for the protocol")]
    Reserved {
        /// The name.
        name: ToolName,
    },
    /// Two tools have the same name.
    #[error("two tools are named {name:?}; rename one, or give its source a prefix")]
    Duplicate {
        /// The name.
        name: ToolName,
    },
    /// The tool must ask a person, and nothing is there to ask.
    #[error("{name:?} needs a person's consent, and nobody can be asked")]
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
        /// What is wrong with it.
        reason: String,
    },
    /// A description or schema is larger than allowed.
    #[error("the {part} of {name:?} has {size} bytes, {limit} are allowed")]
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
    #[error("{count} tools are more than the {limit} that one participant may offer")]
    TooMany {
        /// How many there are.
        count: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// All tools together do not fit a registration.
    #[error("the registration of all tools has {size} bytes, {limit} can be carried")]
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

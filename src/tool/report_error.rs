//! Defines why a report cannot be made.

use crate::{
    tool::{InvalidToolName, ToolName},
    transport::CloseReason,
    value::EncodeError,
};

/// Why something cannot be reported.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The name of the tool is not valid.
    #[error(transparent)]
    Name(#[from] InvalidToolName),
    /// The name is reserved. Of those, only [`ToolName::EVENT`] can be reported.
    #[error("the name {tool} is reserved; of the reserved names only bridge.event can be reported")]
    Reserved {
        /// The name.
        tool: ToolName,
    },
    /// The arguments, the metadata or the content cannot be encoded, or are not a map.
    #[error(transparent)]
    Arguments(EncodeError),
    /// The arguments or the view are too large.
    #[error("{size} bytes exceed the limit of {limit}")]
    TooLarge {
        /// Their bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// Too many reported calls are open, or there are too many views.
    #[error("{open} are open, and {limit} are allowed")]
    TooMany {
        /// How many there are.
        open: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// Too many reports were made in the last second.
    #[error("more than {limit} reports in a second")]
    TooOften {
        /// How many are allowed in a second.
        limit: u32,
    },
    /// The name of the view is empty, too long, or has control characters.
    #[error("the name of a view must have 1 to {limit} bytes and no control characters")]
    View {
        /// The limit in bytes.
        limit: usize,
    },
    /// Only an assistant can report.
    #[error("only an assistant can report to the room")]
    NotAnAssistant,
    /// The participant has left the room.
    #[error("the participant has left the room: {0}")]
    Closed(CloseReason),
}

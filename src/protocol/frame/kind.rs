//! Defines the types of frames.

use std::fmt;

/// A frame's type (`wire.md`, section 3): a number, of which only some have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(u16);

impl Kind {
    /// Reports a malformed frame or a bad state of the conversation.
    pub const ERROR: Self = Self(1);
    /// Requests that a tool runs.
    pub const TOOL_USE_REQUEST: Self = Self(6);
    /// Carries a call's outcome.
    pub const TOOL_USE_RESULT: Self = Self(7);
    /// Acknowledges a frame.
    pub const ACKNOWLEDGEMENT: Self = Self(8);
    /// Stops a call, or all calls.
    pub const CONTROL_STOP: Self = Self(10);
    /// Introduces a participant and its features.
    pub const CONFIGURATION: Self = Self(12);
    /// Lists the tools that a client offers.
    pub const TOOLS_REGISTER: Self = Self(70);
    /// Answers a registration.
    pub const TOOLS_REGISTER_ACK: Self = Self(71);
    /// Shows that a client is alive.
    pub const HEARTBEAT: Self = Self(72);
    /// Reports the progress of a running tool.
    pub const TOOL_PROGRESS: Self = Self(1000);
    /// Shows the latest state of a view.
    pub const VIEW_UPDATE: Self = Self(1001);

    /// Creates the type with this number.
    pub const fn new(code: u16) -> Self {
        Self(code)
    }

    /// Returns the number.
    pub const fn code(self) -> u16 {
        self.0
    }

    /// Returns its name in canonical JSON; `Unknown` if the protocol does not define it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ERROR => "ErrorMessage",
            Self::TOOL_USE_REQUEST => "ToolUseRequest",
            Self::TOOL_USE_RESULT => "ToolUseResult",
            Self::ACKNOWLEDGEMENT => "Acknowledgement",
            Self::CONTROL_STOP => "ControlStop",
            Self::CONFIGURATION => "Configuration",
            Self::TOOLS_REGISTER => "ToolsRegister",
            Self::TOOLS_REGISTER_ACK => "ToolsRegisterAck",
            Self::HEARTBEAT => "Heartbeat",
            Self::TOOL_PROGRESS => "ToolProgress",
            Self::VIEW_UPDATE => "ViewUpdate",
            _ => "Unknown",
        }
    }

    /// Returns whether the protocol defines it.
    pub fn is_known(self) -> bool {
        self.name() != "Unknown"
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

//! The types of frames.

use std::fmt;

/// A frame's type (`wire.md`, section 3): a number of which only some have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(u16);

impl Kind {
    /// A malformed frame or a bad state of the conversation.
    pub const ERROR: Self = Self(1);
    /// Please run this tool.
    pub const TOOL_USE_REQUEST: Self = Self(6);
    /// A call's outcome.
    pub const TOOL_USE_RESULT: Self = Self(7);
    /// A frame was received.
    pub const ACKNOWLEDGEMENT: Self = Self(8);
    /// Stop a call, or everything.
    pub const CONTROL_STOP: Self = Self(10);
    /// Who I am and what I can.
    pub const CONFIGURATION: Self = Self(12);
    /// The tools that a client offers.
    pub const TOOLS_REGISTER: Self = Self(70);
    /// The answer to a registration.
    pub const TOOLS_REGISTER_ACK: Self = Self(71);
    /// A sign of life.
    pub const HEARTBEAT: Self = Self(72);
    /// How far a running tool has come.
    pub const TOOL_PROGRESS: Self = Self(1000);

    /// The type of this number.
    pub const fn new(code: u16) -> Self {
        Self(code)
    }

    /// The number.
    pub const fn code(self) -> u16 {
        self.0
    }

    /// Its name in canonical JSON; `Unknown` where this protocol has none.
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
            _ => "Unknown",
        }
    }

    /// Whether it is one of the types that this protocol knows.
    pub fn is_known(self) -> bool {
        self.name() != "Unknown"
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

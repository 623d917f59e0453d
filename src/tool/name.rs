//! Defines tool names and call ids.

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

/// The longest tool name, in bytes.
pub const MAX_TOOL_NAME: usize = 64;

/// A tool's name: 1 to 64 of `A–Z a–z 0–9 _ . -`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ToolName(Arc<str>);

impl ToolName {
    /// The prefix of names that are reserved for the protocol.
    pub const RESERVED: &str = "bridge.";

    /// The tool that every client's session answers itself, with the call's arguments.
    pub const ECHO: &str = "bridge.echo";

    /// The call that reports what belongs to an earlier call: see [`Assistant::report`](crate::Assistant::report).
    pub const EVENT: &str = "bridge.event";

    /// The prompts: questions to a person, which are never registered. See [`Prompt`](super::Prompt).
    pub const PROMPTS: [&str; 4] = ["bridge.permission", "bridge.choose", "bridge.authorize", "bridge.form"];

    /// Returns whether it is one of [`PROMPTS`](ToolName::PROMPTS).
    pub fn is_prompt(&self) -> bool {
        Self::PROMPTS.contains(&self.as_str())
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether the name is reserved, so that it cannot be registered.
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with(Self::RESERVED)
    }
}

impl FromStr for ToolName {
    type Err = InvalidToolName;

    fn from_str(text: &str) -> Result<Self, InvalidToolName> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
        if text.is_empty() || text.len() > MAX_TOOL_NAME || !text.bytes().all(allowed) {
            return Err(InvalidToolName(text.chars().take(MAX_TOOL_NAME).collect()));
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for ToolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ToolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl AsRef<str> for ToolName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl TryFrom<&str> for ToolName {
    type Error = InvalidToolName;

    fn try_from(text: &str) -> Result<Self, InvalidToolName> {
        text.parse()
    }
}

impl TryFrom<String> for ToolName {
    type Error = InvalidToolName;

    fn try_from(text: String) -> Result<Self, InvalidToolName> {
        text.parse()
    }
}

impl Borrow<str> for ToolName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// The text is not a valid tool name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a tool name: use 1 to {MAX_TOOL_NAME} of A-Z a-z 0-9 _ . -")]
pub struct InvalidToolName(String);

/// A call's id: a NanoID that toolbridge generated, or any text that another implementation chose. Never empty.
///
/// [`FrameCaps::id_bytes`](crate::protocol::session::FrameCaps::id_bytes) limits the length of the ids that a session accepts.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct CallId(Arc<str>);

// Implemented by hand, so that unit tests can count comparisons.
impl Ord for CallId {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        #[cfg(test)]
        crate::transport::types::comparisons::count();
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for CallId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl CallId {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Creates the id from a text that is not empty: the decoder treats an empty id as absent.
    pub(crate) fn known(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }
}

impl AsRef<str> for CallId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for CallId {
    type Err = InvalidCallId;

    fn from_str(text: &str) -> Result<Self, InvalidCallId> {
        if text.is_empty() { Err(InvalidCallId(())) } else { Ok(Self::known(text)) }
    }
}

impl TryFrom<&str> for CallId {
    type Error = InvalidCallId;

    fn try_from(text: &str) -> Result<Self, InvalidCallId> {
        text.parse()
    }
}

impl TryFrom<String> for CallId {
    type Error = InvalidCallId;

    fn try_from(text: String) -> Result<Self, InvalidCallId> {
        text.parse()
    }
}

/// An empty text, which is not a call id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a call id must not be empty")]
pub struct InvalidCallId(());

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_short_ascii() {
        for good in ["a", "get_battery", "fs.read-file", &"x".repeat(64)] {
            assert_eq!(good.parse::<ToolName>().unwrap().as_str(), good);
        }
        for bad in ["", "a b", "а", "a/b", "a\n", &"x".repeat(65)] {
            assert!(bad.parse::<ToolName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn empty_call_id_is_refused() {
        assert_eq!("c1".parse::<CallId>().unwrap().as_str(), "c1");
        assert_eq!(CallId::try_from(String::new()).unwrap_err().to_string(), "a call id must not be empty");
    }
}

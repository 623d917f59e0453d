//! How far a running tool has come.

use std::fmt;

use crate::value::Value;

/// How far a running tool has come, in words for a person. `Debug` shows their length.
#[derive(Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// Where it stands.
    pub status: ProgressStatus,
    /// What it says, if anything.
    pub message: Option<String>,
    /// Anything structured.
    pub content: Option<Value>,
}

impl Progress {
    /// The owner has begun.
    pub fn started() -> Self {
        Self::default()
    }

    /// With structured content.
    #[must_use]
    pub fn content(mut self, content: Value) -> Self {
        self.content = Some(content);
        self
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = self.message.as_ref().map(|text| format_args!("{} B", text.len()).to_string());
        f.debug_struct("Progress")
            .field("status", &self.status)
            .field("message", &message)
            .field("content", &self.content)
            .finish()
    }
}

impl From<String> for Progress {
    fn from(message: String) -> Self {
        Self { message: Some(message), ..Self::default() }
    }
}

impl From<&str> for Progress {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message.as_deref().unwrap_or(self.status.as_str()))
    }
}

/// Where a running tool stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ProgressStatus {
    /// Not begun.
    Pending,
    /// At work.
    #[default]
    InProgress,
    /// Done; the result follows.
    Completed,
    /// Failed; the result follows.
    Failed,
}

impl ProgressStatus {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }

    /// The status that the word names.
    pub fn from_text(text: &str) -> Option<Self> {
        [Self::Pending, Self::InProgress, Self::Completed, Self::Failed]
            .into_iter()
            .find(|it| it.as_str() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tool_says_of_itself_is_not_in_its_debug_text() {
        let told = Progress::from("Ada's number").content(Value::from_json(r#"{"n": "secret"}"#).unwrap());
        let shown = format!("{told:?}");
        assert!(shown.contains("12 B") && !shown.contains("Ada") && !shown.contains("secret"), "{shown}");
    }
}

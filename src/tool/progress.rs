//! Progress of a running tool.

use std::fmt;

use crate::value::Value;

/// Progress of a running tool, for a person to read. `Debug` shows only the length of the text.
#[derive(Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// The state of the tool.
    pub status: ProgressStatus,
    /// A text, if any.
    pub message: Option<String>,
    /// Structured content, if any.
    pub content: Option<Value>,
}

impl Progress {
    /// Creates the progress that an owner sends when its tool starts.
    pub fn started() -> Self {
        Self::default()
    }

    /// Adds structured content.
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

/// The state of a running tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProgressStatus {
    /// Not started.
    Pending,
    /// Running.
    #[default]
    InProgress,
    /// Done; the result follows.
    Completed,
    /// Failed; the result follows.
    Failed,
}

impl ProgressStatus {
    /// Returns the value on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }

    /// Returns the status with this value on the wire.
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
    fn debug_output_of_progress_hides_its_text() {
        let told = Progress::from("Ada's number").content(Value::from_json(r#"{"n": "secret"}"#).unwrap());
        let shown = format!("{told:?}");
        assert!(shown.contains("12 B") && !shown.contains("Ada") && !shown.contains("secret"), "{shown}");
    }
}

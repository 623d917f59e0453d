//! Reports the progress of a running tool.

use std::{collections::BTreeMap, fmt};

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

    /// Creates progress that counts: `done` of `total` units, as `content` `{"progress": done, "total": total}`.
    ///
    /// ```
    /// use toolbridge::Progress;
    ///
    /// let progress = Progress::of(3, 10);
    /// assert_eq!((progress.done(), progress.total()), (Some(3.0), Some(10.0)));
    /// ```
    pub fn of(done: impl Into<f64>, total: impl Into<f64>) -> Self {
        Self::counted(done.into(), Some(total.into()))
    }

    /// Creates progress that counts the units done so far, where their total is unknown.
    pub fn so_far(done: impl Into<f64>) -> Self {
        Self::counted(done.into(), None)
    }

    /// Adds a text for people.
    #[must_use]
    pub fn message(mut self, text: impl Into<String>) -> Self {
        self.message = Some(text.into());
        self
    }

    /// Returns the units done so far, if the content counts them.
    pub fn done(&self) -> Option<f64> {
        self.count("progress")
    }

    /// Returns the total of the units, if it is known.
    pub fn total(&self) -> Option<f64> {
        self.count("total")
    }

    /// A number that is not finite is left out.
    fn counted(done: f64, total: Option<f64>) -> Self {
        let total = total.filter(|total| total.is_finite());
        let content = match total {
            _ if !done.is_finite() => return Self::default(),
            Some(total) => Value::encode(&BTreeMap::from([("progress", done), ("total", total)])),
            None => Value::encode(&BTreeMap::from([("progress", done)])),
        };
        Self { content: content.ok(), ..Self::default() }
    }

    fn count(&self, key: &str) -> Option<f64> {
        self.content.as_ref()?.get(key)?.decode().ok()
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
    fn number_that_is_not_finite_is_left_out() {
        assert_eq!(Progress::of(f64::NAN, 1), Progress::default());
        assert_eq!(Progress::of(1, f64::INFINITY), Progress::so_far(1));
        assert_eq!(
            Progress::of(0.5, 2).content.unwrap().to_json().to_string(),
            r#"{"progress":0.5,"total":2.0}"#
        );
        let text = Progress::from("3 of 10").content(Value::from_json(r#"{"progress": "3"}"#).unwrap());
        assert_eq!((text.done(), text.total()), (None, None));
    }

    #[test]
    fn debug_output_of_progress_hides_its_text() {
        let told = Progress::from("Ada's number").content(Value::from_json(r#"{"n": "secret"}"#).unwrap());
        let shown = format!("{told:?}");
        assert!(shown.contains("12 B") && !shown.contains("Ada") && !shown.contains("secret"), "{shown}");
    }
}

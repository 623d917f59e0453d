//! Writes the texts that others than the model get of a result, such as the message of a failure.

use super::{ToolResult, view::json_of};
use crate::{
    tool::{ErrorCode, ToolError},
    value::prefix,
};

/// The longest message of a failure that is made of its result, in bytes. The partial result has all of the text.
const MAX_MESSAGE: usize = 2 * 1024;

/// A result without what is for the model alone.
pub(crate) struct PublicText(ToolResult);

impl PublicText {
    pub(crate) fn of(result: &ToolResult) -> Self {
        Self(result.for_clients())
    }

    /// Returns its texts, joined by line breaks.
    pub(crate) fn text(&self) -> Option<String> {
        let texts: Vec<&str> = self.0.content().iter().filter_map(|block| block.as_text()).collect();
        Some(texts.join("\n")).filter(|text| !text.trim().is_empty())
    }

    /// Returns its texts, or the JSON of its structured data if it has none.
    pub(crate) fn words(&self) -> Option<String> {
        let data =
            || self.0.structured().filter(|data| !data.is_nil()).map(|data| json_of(data).into_owned());
        self.text().or_else(data)
    }

    /// Returns its first text that is not empty.
    #[cfg(any(test, all(feature = "acp", unix)))]
    pub(crate) fn first_text(&self) -> Option<&str> {
        let mut texts = self.0.content().iter().filter_map(|block| block.as_text());
        texts.find(|text| !text.trim().is_empty())
    }
}

impl ToolError {
    /// Creates the failure of a tool that reports an error, in the words of its result.
    #[cfg(any(test, feature = "runtime"))]
    pub(crate) fn reported(result: &ToolResult) -> Self {
        let has_text = result.content().iter().any(|it| it.as_text().is_some_and(|it| !it.trim().is_empty()));
        let silent = match has_text {
            true => "the tool reports an error, whose text is for the model alone",
            false => "the tool reports an error without a text",
        };
        Self::of_result(result, PublicText::words, silent)
    }

    /// Creates the failure of a tool whose result says what went wrong. The result is its partial result, and its message
    /// is what `choose` takes of the public part, otherwise `otherwise`.
    pub(crate) fn of_result(
        result: &ToolResult,
        choose: impl FnOnce(&PublicText) -> Option<String>,
        otherwise: &str,
    ) -> Self {
        let message = choose(&PublicText::of(result)).unwrap_or_else(|| otherwise.to_owned());
        Self::new(ErrorCode::EXECUTION_ERROR, prefix(&message, MAX_MESSAGE)).with_partial(result.to_value())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_of_a_failure_is_made_of_the_public_part() {
        let hidden = ToolResult::default().with_model_text("planted-for-the-model");
        let both = hidden.clone().with_text("no such file").with_person_text("Sorry.");
        let of = |result: &ToolResult| {
            let error = ToolError::of_result(result, PublicText::text, "it failed");
            assert_eq!(
                ToolResult::of(error.partial().unwrap()).content(),
                result.content(),
                "the model reads all"
            );
            error.message().to_owned()
        };
        assert_eq!((of(&hidden).as_str(), of(&both).as_str()), ("it failed", "no such file\nSorry."));
        let reported = |result: &ToolResult| ToolError::reported(result).message().to_owned();
        assert_eq!(reported(&ToolResult::default()), "the tool reports an error without a text");
        assert_eq!(reported(&hidden), "the tool reports an error, whose text is for the model alone");
        assert_eq!(PublicText::of(&both).first_text(), Some("no such file"));
        let long = ToolResult::text("x".repeat(10_000));
        assert_eq!(of(&long).len(), MAX_MESSAGE);
    }
}

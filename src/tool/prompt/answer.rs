//! Reads and writes a person's answer.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::value::{EncodeError, Value};

/// A person's answer to a [`Prompt`](super::Prompt): the result of its call.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PromptAnswer {
    /// The decision.
    pub outcome: Decision,
    /// The selected option of a permission, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub option_id: Option<String>,
    /// The index of the selected choice, counted from 0, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selected: Option<usize>,
    /// The data of a form: a map. The caller checks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// What the person said, for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// The decision in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Decision {
    /// An option or choice was selected.
    Selected,
    /// The person has done what was asked, for example signed in.
    Done,
    /// The form was filled in.
    Submitted,
    /// The person declined.
    Declined,
    /// The question was dismissed without an answer.
    Cancelled,
    /// A value of another version. It never means yes.
    #[serde(other)]
    Unknown,
}

impl PromptAnswer {
    /// Selects this option of a permission.
    pub fn selected(option: impl Into<String>) -> Self {
        Self { option_id: Some(option.into()), ..Self::of(Decision::Selected) }
    }

    /// Selects this choice, counted from 0.
    pub fn choice(index: usize) -> Self {
        Self { selected: Some(index), ..Self::of(Decision::Selected) }
    }

    /// States that the person has done what was asked, for example signed in.
    pub fn done() -> Self {
        Self::of(Decision::Done)
    }

    /// Submits a form with this data.
    ///
    /// # Errors
    /// If the data cannot be encoded.
    pub fn submitted(data: &(impl Serialize + ?Sized)) -> Result<Self, EncodeError> {
        Ok(Self { data: Some(Value::encode(data)?), ..Self::of(Decision::Submitted) })
    }

    /// States that the person declines to sign in or to fill in the form.
    pub fn declined() -> Self {
        Self::of(Decision::Declined)
    }

    /// States that the question was dismissed.
    pub fn cancelled() -> Self {
        Self::of(Decision::Cancelled)
    }

    /// Adds what the person said.
    #[must_use]
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.text = Some(text.into());
        self
    }

    fn of(outcome: Decision) -> Self {
        Self { outcome, option_id: None, selected: None, data: None, text: None }
    }
}

impl fmt::Debug for PromptAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PromptAnswer").field("outcome", &self.outcome).finish_non_exhaustive()
    }
}

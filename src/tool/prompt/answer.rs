//! What a person answered.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::value::{EncodeError, Value};

/// What a person answered to a [`Prompt`](super::Prompt): the result of its call.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PromptAnswer {
    /// What it came to.
    pub outcome: Decision,
    /// The option of a permission, if one was selected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub option_id: Option<String>,
    /// The choice, counted from 0, if one was selected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selected: Option<usize>,
    /// What a form was filled in with: a map. Whoever asked checks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// What the person said with it, for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// What an answer came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Decision {
    /// An option or choice was selected.
    Selected,
    /// The person did what was asked for.
    Done,
    /// The form was filled in.
    Submitted,
    /// The person will not.
    Declined,
    /// The question was put away without an answer.
    Cancelled,
    /// A word of another version: never a yes.
    #[serde(other)]
    Unknown,
}

impl PromptAnswer {
    /// This option of a permission.
    pub fn selected(option: impl Into<String>) -> Self {
        Self { option_id: Some(option.into()), ..Self::of(Decision::Selected) }
    }

    /// This choice, counted from 0.
    pub fn choice(index: usize) -> Self {
        Self { selected: Some(index), ..Self::of(Decision::Selected) }
    }

    /// The person did what was asked for: signed in.
    pub fn done() -> Self {
        Self::of(Decision::Done)
    }

    /// A form with what it was filled in with.
    ///
    /// # Errors
    /// Data that cannot be encoded.
    pub fn submitted(data: &(impl Serialize + ?Sized)) -> Result<Self, EncodeError> {
        Ok(Self { data: Some(Value::encode(data)?), ..Self::of(Decision::Submitted) })
    }

    /// The person will not sign in, or fill in the form.
    pub fn declined() -> Self {
        Self::of(Decision::Declined)
    }

    /// The question was put away.
    pub fn cancelled() -> Self {
        Self::of(Decision::Cancelled)
    }

    /// With what the person said.
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

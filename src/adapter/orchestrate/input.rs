//! Defines the inputs of a form.

use serde_json::Value as Json;

/// One input of a [`Form`](super::Form).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Input {
    /// The key of its value in the form's data.
    pub name: String,
    /// What it is called.
    pub title: String,
    /// An explanation, if any.
    pub description: Option<String>,
    /// Whether a value is needed.
    pub is_required: bool,
    /// What it asks for.
    pub kind: InputKind,
}

/// What an input asks for.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum InputKind {
    /// One line of text.
    Text,
    /// Several lines of text.
    TextArea,
    /// One of the choices, shown as radio buttons.
    Radio(Vec<Choice>),
    /// Yes or no.
    Checkbox,
    /// One of the choices, shown as a list with search.
    ComboBox(Vec<Choice>),
    /// Any number of the choices.
    Several(Vec<Choice>),
    /// A number.
    Number,
    /// A number whose digits count, such as a phone number. Its value is a text of digits.
    Digits {
        /// The least number of digits.
        min: Option<usize>,
        /// The largest number of digits.
        max: Option<usize>,
    },
    /// A date, `YYYY-MM-DD`.
    Date,
    /// A time of day, `hh:mm`.
    Time,
    /// A date and a time of day, `YYYY-MM-DDThh:mm`.
    DateTime,
    /// Two dates.
    DateRange,
    /// Files from the person. They need a screen.
    FileUpload,
    /// A file for the person. It asks for nothing.
    FileDownload,
    /// Rows of a table. Its value is a list of rows.
    Table {
        /// The rows.
        rows: Vec<Choice>,
        /// Whether rows can be selected.
        is_selectable: bool,
    },
    /// Something else: the schema alone describes it.
    Other,
}

/// A choice of an input.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Choice {
    /// What the person reads or hears.
    pub label: String,
    /// Its value in the form's data.
    pub value: Json,
}

impl Choice {
    pub(super) fn new(label: impl Into<String>, value: Json) -> Self {
        Self { label: label.into(), value }
    }
}

impl Input {
    /// Returns the choices, if it has any.
    pub fn choices(&self) -> &[Choice] {
        match &self.kind {
            InputKind::Radio(choices) | InputKind::ComboBox(choices) | InputKind::Several(choices) => choices,
            InputKind::Table { rows, is_selectable: true } => rows,
            _ => &[],
        }
    }

    /// Returns whether it asks for something.
    pub fn asks(&self) -> bool {
        !matches!(self.kind, InputKind::FileDownload | InputKind::Table { is_selectable: false, .. })
    }
}

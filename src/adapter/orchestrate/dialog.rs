//! Fills in a form without a screen, one question after the other.

use serde_json::{Map, Value as Json};

use super::{
    check,
    form::Form,
    input::{Choice, Input, InputKind},
    spoken,
};
use crate::prompt::PromptAnswer;

/// What a person is asked for at most as a list.
const MAX_LISTED: usize = 20;

/// Asks the inputs of a form one by one, and reads what the person says.
///
/// ```
/// use serde_json::json;
/// use toolbridge::{result::Widget, adapter::orchestrate::{Dialog, Form}};
///
/// let options = json!([{"label": "Checking", "value": "a1"}, {"label": "Savings", "value": "a2"}]);
/// let widget = json!({"type": "options", "title": "Which account?", "options": options, "on_event": {"tool": "pay"}});
/// let form = Form::of(&Widget::new(widget)).unwrap();
/// let mut dialog = Dialog::new(&form);
/// assert_eq!(dialog.question().unwrap(), "Which account? 1: Checking. 2: Savings.");
/// assert!(dialog.answer("The red one").unwrap_err().starts_with("Please"));
/// dialog.answer("two").unwrap();
/// assert_eq!(dialog.finish().unwrap().data.unwrap().to_json(), json!({"value": "a2"}));
/// ```
#[derive(Debug)]
pub struct Dialog<'a> {
    form: &'a Form,
    at: usize,
    data: Map<String, Json>,
}

impl<'a> Dialog<'a> {
    /// Starts before the first question.
    pub fn new(form: &'a Form) -> Self {
        Self { form, at: 0, data: Map::new() }
    }

    /// Returns the next question, or `None` if there is none left. The first one starts with the form's title.
    ///
    /// Choices are read as a numbered menu, at most 20, unless the form asks not to. A file cannot be spoken: the text
    /// says so, and any answer goes on.
    pub fn question(&self) -> Option<String> {
        let input = self.input()?;
        let mut parts = Vec::new();
        if self.asked().next().is_some_and(|first| first.name == input.name) {
            parts.extend(self.form.title().filter(|title| *title != input.title).map(sentence));
            parts.extend(self.form.description().map(sentence));
        }
        parts.push(sentence(&input.title));
        parts.extend(input.description.as_deref().map(sentence));
        parts.extend(hint(input).map(str::to_owned));
        if self.form.lists_choices {
            let menu = input.choices().iter().take(MAX_LISTED).enumerate();
            parts.extend(menu.map(|(n, choice)| format!("{}: {}.", n + 1, choice.label)));
        }
        if !input.is_required && !matches!(input.kind, InputKind::FileUpload) {
            parts.push("You can say: skip.".into());
        }
        Some(parts.join(" "))
    }

    /// Takes the answer to the current question.
    ///
    /// # Errors
    /// What to say to the person, who has not answered the question. It is asked again.
    pub fn answer(&mut self, said: &str) -> Result<(), String> {
        let Some(input) = self.input() else { return Ok(()) };
        let is_skipped = matches!(input.kind, InputKind::FileUpload)
            || !input.is_required && matches!(said.trim().to_lowercase().as_str(), "" | "skip" | "skip.");
        if !is_skipped {
            let value = read(input, said).ok_or_else(|| format!("Please say {}.", expected(input)))?;
            check::value(input, &value, &self.form.range)
                .map_err(|rule| format!("Please answer again: {rule}."))?;
            self.data.insert(input.name.clone(), value);
        }
        self.at += 1;
        Ok(())
    }

    /// Returns the answer to the form, or `None` if a question is left. The form still has to check it.
    pub fn finish(self) -> Option<PromptAnswer> {
        if self.input().is_some() {
            return None;
        }
        PromptAnswer::submitted(&self.data).ok()
    }

    fn input(&self) -> Option<&'a Input> {
        self.asked().nth(self.at)
    }

    fn asked(&self) -> impl Iterator<Item = &'a Input> + use<'a> {
        self.form.inputs().iter().filter(|input| input.asks())
    }
}

/// Ends a text so that it can be spoken before another one.
fn sentence(text: &str) -> String {
    let text = text.trim();
    if text.ends_with(['.', '?', '!', ':']) { text.to_owned() } else { format!("{text}.") }
}

fn hint(input: &Input) -> Option<&'static str> {
    match input.kind {
        InputKind::FileUpload => Some("A file cannot be given by voice. It can be added on a screen."),
        InputKind::DateRange => Some("Say the first and the last day, with \"to\" between them."),
        InputKind::Several(_) | InputKind::Table { .. } => Some("You can choose several."),
        _ => None,
    }
}

fn expected(input: &Input) -> &'static str {
    match input.kind {
        InputKind::Checkbox => "yes or no",
        InputKind::Number => "a number",
        InputKind::Digits { .. } => "the digits",
        InputKind::Date => "a date with day, month and year",
        InputKind::Time => "a time of day",
        InputKind::DateTime => "a date and a time of day",
        InputKind::DateRange => "two dates with \"to\" between them",
        _ if !input.choices().is_empty() => "one of the choices, or its number",
        _ => "something else",
    }
}

/// Reads what the person said as a value of the input.
fn read(input: &Input, said: &str) -> Option<Json> {
    let said = said.trim();
    match &input.kind {
        InputKind::Text | InputKind::TextArea => (!said.is_empty()).then(|| said.into()),
        InputKind::Checkbox => spoken::yes_or_no(said).map(Json::from),
        InputKind::Number => spoken::decimal(said).map(Json::from),
        InputKind::Digits { .. } => spoken::digits(said).map(Json::from),
        InputKind::Date => spoken::date(said).map(Json::from),
        InputKind::Time => spoken::time(said).map(Json::from),
        InputKind::DateTime => spoken::datetime(said).map(Json::from),
        InputKind::DateRange => {
            let (first, last) = said.split_once(" to ").or_else(|| said.split_once(" until "))?;
            Some(vec![spoken::date(first)?, spoken::date(last)?].into())
        }
        InputKind::Several(choices) | InputKind::Table { rows: choices, .. } => {
            let parts = said.split([',', ';']).flat_map(|part| part.split(" and "));
            let chosen: Option<Vec<Json>> = parts.map(|part| chosen(choices, part)).collect();
            chosen.map(Json::from)
        }
        _ if !input.choices().is_empty() => chosen(input.choices(), said),
        _ => None,
    }
}

/// Finds a choice by its label, its value or its number in the menu.
fn chosen(choices: &[Choice], said: &str) -> Option<Json> {
    let said = said.trim().trim_end_matches('.').to_lowercase();
    let is_named = |choice: &&Choice| {
        choice.label.to_lowercase() == said
            || choice.value.as_str().is_some_and(|it| it.to_lowercase() == said)
    };
    if let Some(choice) = choices.iter().find(is_named) {
        return Some(choice.value.clone());
    }
    let words = said.strip_prefix("number ").unwrap_or(&said);
    let number = words.parse().ok().or_else(|| spoken::whole(words))?;
    choices.get(usize::try_from(number).ok()?.checked_sub(1)?).map(|choice| choice.value.clone())
}

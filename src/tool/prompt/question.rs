//! Builds questions to a person.

use std::{collections::BTreeSet, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{
    Decision, MAX_PROMPT_CHOICES, MAX_PROMPT_LABEL, MAX_PROMPT_SCHEMA, MAX_PROMPT_TEXT, MAX_PROMPT_URL,
    PromptAnswer,
};
use crate::{tool::public::stripped, value::Value};

/// `bridge.permission`: asks whether calls may be made.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PermissionPrompt {
    /// The text of the question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The call that needs permission.
    pub tool_call: PromptedCall,
    /// Further calls that the same answer decides. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<PromptedCall>,
    /// The possible answers.
    pub options: Vec<PermissionOption>,
}

/// A call that needs a permission. It has a name or a title.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PromptedCall {
    /// The call's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The tool's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the call does, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// `read`, `edit`, `delete`, `execute` or another text, unchecked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_input: Option<Value>,
    /// The files that it affects: a list of {`path`, `line`?}, unchecked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locations: Option<Value>,
    /// Content to show, for example a diff, unchecked. Blocks for the model alone are neither written nor read.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "write_shown",
        deserialize_with = "read_shown"
    )]
    pub content: Option<Value>,
}

/// One answer to a [`PermissionPrompt`].
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PermissionOption {
    /// Identifies the option in the answer.
    pub option_id: String,
    /// The text that is shown or spoken.
    pub name: String,
    /// `allow_once`, `allow_always`, `reject_once` or `reject_always`; anything else allows nothing.
    pub kind: String,
}

/// `bridge.choose`: asks for one of several choices.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ChoicePrompt {
    /// The text of the question.
    pub text: String,
    /// The choices.
    pub choices: Vec<String>,
    /// The choice that the caller assumes if the person does not choose, counted from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<usize>,
}

/// `bridge.authorize`: asks the person to sign in.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct AuthorizePrompt {
    /// The reason, for the person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The service to sign in to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The address to sign in at: `https` only. Do not store or log it.
    pub url: String,
}

/// `bridge.form`: asks the person to fill in a form.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct FormPrompt {
    /// The purpose, for the person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The form's name in its source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The JSON Schema of the data: a map. It is shown, and never compiled by the client.
    pub schema: Value,
    /// The appearance of the form (`ui:order` and similar): a map.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ui_schema: Option<Value>,
    /// The initial data: a map.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

fn write_shown<S: Serializer>(content: &Option<Value>, serializer: S) -> Result<S::Ok, S::Error> {
    content.as_ref().map(stripped).serialize(serializer)
}

fn read_shown<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Ok(Option::<Value>::deserialize(deserializer)?.as_ref().map(stripped))
}

impl PermissionPrompt {
    /// Asks whether this call may be made. The question needs [options](PermissionPrompt::option).
    pub fn new(tool_call: PromptedCall) -> Self {
        Self { text: None, tool_call, others: Vec::new(), options: Vec::new() }
    }

    /// Sets the text of the question.
    #[must_use]
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.text = Some(text.into());
        self
    }

    /// Adds a further call that the same answer decides.
    #[must_use]
    pub fn and(mut self, tool_call: PromptedCall) -> Self {
        self.others.push(tool_call);
        self
    }

    /// Adds a possible answer.
    #[must_use]
    pub fn option(mut self, id: impl Into<String>, name: impl Into<String>, kind: impl Into<String>) -> Self {
        self.options.push(PermissionOption { option_id: id.into(), name: name.into(), kind: kind.into() });
        self
    }

    /// Returns the selected option, if the answer selects one that was offered.
    pub fn chosen(&self, answer: &PromptAnswer) -> Option<&PermissionOption> {
        let id = answer.option_id.as_ref().filter(|_| answer.outcome == Decision::Selected)?;
        self.options.iter().find(|option| option.option_id == *id)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        text("text", self.text.as_deref(), MAX_PROMPT_TEXT)?;
        self.tool_call.check("toolCall")?;
        count("others", self.others.len(), 0)?;
        for (at, call) in self.others.iter().enumerate() {
            call.check(&format!("others[{at}]"))?;
        }
        count("options", self.options.len(), 1)?;
        let mut ids = BTreeSet::new();
        for (at, option) in self.options.iter().enumerate() {
            let path = |field: &str| format!("options[{at}].{field}");
            required(&path("optionId"), &option.option_id, MAX_PROMPT_LABEL)?;
            required(&path("name"), &option.name, MAX_PROMPT_LABEL)?;
            text(&path("kind"), Some(&option.kind), MAX_PROMPT_LABEL)?;
            if !ids.insert(&option.option_id) {
                return Err(format!("{} appears twice", path("optionId")));
            }
        }
        Ok(())
    }
}

impl PromptedCall {
    /// Creates a call of this tool.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..Self::default() }
    }

    /// Sets what the call does, for people.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Sets its arguments.
    #[must_use]
    pub fn raw_input(mut self, arguments: Value) -> Self {
        self.raw_input = Some(arguments);
        self
    }

    fn check(&self, path: &str) -> Result<(), String> {
        let fields = [
            ("toolCallId", &self.tool_call_id),
            ("name", &self.name),
            ("title", &self.title),
            ("kind", &self.kind),
        ];
        for (field, value) in fields {
            text(&format!("{path}.{field}"), value.as_deref(), MAX_PROMPT_TEXT)?;
        }
        let says = |it: &Option<String>| it.as_ref().is_some_and(|it| !it.is_empty());
        if !says(&self.name) && !says(&self.title) {
            return Err(format!("{path} has neither name nor title"));
        }
        Ok(())
    }
}

impl PermissionOption {
    /// Returns whether the option allows the calls, once or always. An unknown kind does not.
    pub fn allows(&self) -> bool {
        matches!(self.kind.as_str(), "allow_once" | "allow_always")
    }
}

impl ChoicePrompt {
    /// Asks for one of these choices.
    pub fn new(text: impl Into<String>, choices: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { text: text.into(), choices: choices.into_iter().map(Into::into).collect(), default: None }
    }

    /// Sets the choice that the caller assumes if the person does not choose, counted from 0.
    #[must_use]
    pub fn default_choice(mut self, index: usize) -> Self {
        self.default = Some(index);
        self
    }

    /// Returns the selected choice, if the answer selects one that was offered.
    pub fn chosen(&self, answer: &PromptAnswer) -> Option<usize> {
        answer.selected.filter(|at| answer.outcome == Decision::Selected && *at < self.choices.len())
    }

    pub(super) fn check(&self) -> Result<(), String> {
        required("text", &self.text, MAX_PROMPT_TEXT)?;
        count("choices", self.choices.len(), 1)?;
        for (at, choice) in self.choices.iter().enumerate() {
            required(&format!("choices[{at}]"), choice, MAX_PROMPT_LABEL)?;
        }
        match self.default {
            Some(at) if at >= self.choices.len() => {
                Err(format!("default is {at}, but there are {} choices", self.choices.len()))
            }
            _ => Ok(()),
        }
    }
}

impl AuthorizePrompt {
    /// Asks the person to sign in at this URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self { text: None, service: None, url: url.into() }
    }

    /// Sets the reason.
    #[must_use]
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.text = Some(text.into());
        self
    }

    /// Sets the service to sign in to.
    #[must_use]
    pub fn service(mut self, service: impl Into<String>) -> Self {
        self.service = Some(service.into());
        self
    }

    pub(super) fn check(&self) -> Result<(), String> {
        text("text", self.text.as_deref(), MAX_PROMPT_TEXT)?;
        text("service", self.service.as_deref(), MAX_PROMPT_LABEL)?;
        required("url", &self.url, MAX_PROMPT_URL)?;
        let rest = self.url.strip_prefix("https://");
        let host = rest.map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
        // A user name before the host could hide the real host; other characters may look like ASCII ones.
        let good = host.is_some_and(|host| !host.is_empty() && !host.contains('@'))
            && self.url.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
        if good { Ok(()) } else { Err("url must be an https URL in ASCII without a user name".to_owned()) }
    }
}

impl FormPrompt {
    /// Asks the person to fill in the data that this JSON Schema describes.
    pub fn new(schema: Value) -> Self {
        Self { text: None, name: None, schema, ui_schema: None, data: None }
    }

    /// Sets the purpose.
    #[must_use]
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.text = Some(text.into());
        self
    }

    /// Sets the initial data.
    #[must_use]
    pub fn data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    pub(super) fn check(&self) -> Result<(), String> {
        text("text", self.text.as_deref(), MAX_PROMPT_TEXT)?;
        text("name", self.name.as_deref(), MAX_PROMPT_LABEL)?;
        map("schema", Some(&self.schema))?;
        map("uiSchema", self.ui_schema.as_ref())?;
        map("data", self.data.as_ref())
    }
}

fn text(path: &str, value: Option<&str>, limit: usize) -> Result<(), String> {
    match value.map_or(0, str::len) {
        size if size > limit => Err(format!("{path} has {size} bytes; the limit is {limit}")),
        _ => Ok(()),
    }
}

fn required(path: &str, value: &str, limit: usize) -> Result<(), String> {
    if value.is_empty() { Err(format!("{path} is empty")) } else { text(path, Some(value), limit) }
}

fn count(path: &str, entries: usize, least: usize) -> Result<(), String> {
    if (least..=MAX_PROMPT_CHOICES).contains(&entries) {
        return Ok(());
    }
    Err(format!("{path} has {entries} entries, {least} to {MAX_PROMPT_CHOICES} are allowed"))
}

fn map(path: &str, value: Option<&Value>) -> Result<(), String> {
    let Some(value) = value else { return Ok(()) };
    if !value.is_map() {
        return Err(format!("{path} is not a map"));
    }
    let size = value.as_bytes().len();
    if size > MAX_PROMPT_SCHEMA {
        return Err(format!("{path} has {size} bytes; the limit is {MAX_PROMPT_SCHEMA}"));
    }
    Ok(())
}

/// The content may be private: only counts are printed.
macro_rules! shown_by_counts {
    ($($name:ident { $($field:literal: $count:expr),* };)*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let count: &[(&str, fn(&Self) -> usize)] = &[$(($field, $count)),*];
                let mut shown = f.debug_struct(stringify!($name));
                for (field, count) in count {
                    shown.field(field, &count(self));
                }
                shown.finish_non_exhaustive()
            }
        }
    )*};
}

shown_by_counts! {
    PermissionPrompt { "others": |it| it.others.len(), "options": |it| it.options.len() };
    PromptedCall { "input_bytes": |it| it.raw_input.as_ref().map_or(0, |input| input.as_bytes().len()) };
    PermissionOption { "name_bytes": |it| it.name.len() };
    ChoicePrompt { "choices": |it| it.choices.len() };
    AuthorizePrompt { "url_bytes": |it| it.url.len() };
    FormPrompt { "schema_bytes": |it| it.schema.as_bytes().len() };
}

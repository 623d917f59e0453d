//! Defines a form: a question for a person, and what its answer becomes.

use serde_json::{Map, Value as Json, json};

use super::{
    check,
    input::{Input, InputKind},
    read,
};
use crate::{
    ToolName, Value,
    prompt::{Decision, FormPrompt, MAX_PROMPT_LABEL, MAX_PROMPT_SCHEMA, MAX_PROMPT_TEXT, PromptAnswer},
    result::Widget,
    tools::{DataSchema, SchemaError},
    value::{abridged, prefix},
};

/// The most values of an answer times values of the form's schema: checking them takes about 0.1 s.
const MAX_COMPARISONS: usize = 4_000_000;

/// The property that answers a confirmation.
const CONFIRM: &str = "confirm";

/// A widget that asks a person for something: a form, or a customer-care widget, which is a form with one input.
///
/// ```
/// use serde_json::json;
/// use toolbridge::{prompt::PromptAnswer, result::Widget, adapter::orchestrate::{Form, Submission}};
///
/// let form = Form::of(&Widget::new(json!({
///     "type": "datetime", "collection_type": "date", "title": "When?", "min_datetime": "2026-03-01",
///     "on_event": {"tool": "pay", "parameters": {"amount": 5}, "map_input_to": "day"},
/// }))).unwrap();
/// let answer = PromptAnswer::submitted(&json!({"day": "2026-03-05"}))?;
/// // The caller knows which tools the widget's server offers, and under which names.
/// let callable = |tool: &str| (tool == "pay").then(|| "bank.pay".parse().unwrap());
/// let Submission::Call { tool, arguments } = form.submit(&answer, callable)? else { unreachable!() };
/// assert_eq!((tool.as_str(), arguments.to_json()), ("bank.pay", json!({"amount": 5, "day": "2026-03-05"})));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    title: Option<String>,
    description: Option<String>,
    inputs: Vec<Input>,
    /// Whether choices are listed when they are spoken.
    pub(super) lists_choices: bool,
    name: Option<String>,
    schema: Json,
    ui: Json,
    data: Json,
    on_submit: Target,
    on_decline: Target,
    /// The first and last value of a date or time.
    pub(super) range: [Option<String>; 2],
    /// Whether the value of the only input is sent, rather than all data.
    is_single: bool,
    is_confirmation: bool,
}

/// What an answer becomes.
#[derive(Clone, Debug, PartialEq)]
enum Target {
    Tool { tool: String, parameters: Map<String, Json>, input: Option<String> },
    Message(String),
    Nothing,
}

/// What the answer to a form becomes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Submission {
    /// A call of a tool of the server that issued the form.
    Call {
        /// The tool, under the name that the caller gave it.
        tool: ToolName,
        /// The parameters of the stored form, and the answer.
        arguments: Value,
    },
    /// A message of the person to the model.
    Message(String),
    /// Nothing happens.
    Nothing,
}

/// Why a form cannot be asked, or its answer has no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormError {
    /// The form is too large for a prompt.
    #[error("the {part} of the form has {size} bytes; the limit is {limit}")]
    TooLarge {
        /// `schema` or `uiSchema`.
        part: &'static str,
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The schema of the form cannot be used, or the answer does not fit it. The text has no part of the answer.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// A value is not what its input asks for.
    #[error("the answer does not fit at {input:?}: {rule}")]
    Answer {
        /// The input's name.
        input: String,
        /// What the value must be.
        rule: String,
    },
    /// The form calls a tool that its server does not offer, or that may not be called now.
    #[error("the form calls {tool:?}, which its server does not offer in this session")]
    Tool {
        /// The name in the form.
        tool: String,
    },
}

impl Form {
    /// Reads a widget. Returns `None` if it asks for nothing that is known here: then the result's text stands for it.
    pub fn of(widget: &Widget) -> Option<Self> {
        let json: Json = widget.value().decode().ok()?;
        match &json {
            it if it["json_schema"]["properties"].is_object() => Some(Self::of_form(&json)),
            it if it["type"] == "confirmation" => Some(Self::of_confirmation(&json)),
            _ => Self::of_care(&json),
        }
    }

    fn of_form(json: &Json) -> Self {
        let (schema, ui, data) = (&json["json_schema"], &json["ui_schema"], &json["form_data"]);
        Self {
            title: text(&schema["title"]),
            description: text(&schema["description"]),
            inputs: read::inputs(schema, ui, data),
            name: text(&json["name"]),
            schema: schema.clone(),
            ui: ui.clone(),
            data: data.clone(),
            on_submit: first_target(&json["on_event"]),
            ..Self::empty(json)
        }
    }

    fn of_confirmation(json: &Json) -> Self {
        let title = text(&json["confirmation_text"]).or_else(|| text(&json["title"]));
        let property = json!({"type": "boolean", "title": title});
        Self {
            on_submit: target(&json["on_confirm"]),
            on_decline: target(&json["on_cancel"]),
            is_confirmation: true,
            ..Self::empty(json).with_only_input(CONFIRM, InputKind::Checkbox, &property)
        }
    }

    fn of_care(json: &Json) -> Option<Self> {
        let (kind, property) = read::care(json)?;
        let on_submit = first_target(&json["on_event"]);
        let name = match &on_submit {
            Target::Tool { input: Some(name), .. } => name.clone(),
            _ => "value".into(),
        };
        Some(Self {
            on_submit,
            range: ["min_datetime", "max_datetime"].map(|key| text(&json[key])),
            is_single: true,
            ..Self::empty(json).with_only_input(&name, kind, &property)
        })
    }

    fn empty(json: &Json) -> Self {
        Self {
            title: text(&json["title"]),
            description: text(&json["description"]),
            inputs: Vec::new(),
            lists_choices: json["channel_adaptation"]["voice"]["show_options"] != false,
            name: None,
            schema: json!({}),
            ui: Json::Null,
            data: Json::Null,
            on_submit: Target::Nothing,
            on_decline: Target::Nothing,
            range: [None, None],
            is_single: false,
            is_confirmation: false,
        }
    }

    fn with_only_input(mut self, name: &str, kind: InputKind, property: &Json) -> Self {
        let title =
            text(&property["title"]).or_else(|| self.title.clone()).unwrap_or_else(|| name.to_owned());
        self.schema = json!({
            "type": "object", "properties": {name: property}, "required": [name], "additionalProperties": false,
        });
        self.inputs =
            vec![Input { name: name.to_owned(), title, description: None, is_required: true, kind }];
        self
    }

    /// Returns the title, if any.
    pub fn title(&self) -> Option<&str> {
        self.title.as_deref()
    }

    /// Returns the explanation, if any.
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// Returns the inputs, in the order in which they are shown. At most 200 are read.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// Returns the question for a client. Long texts are cut, and initial data beyond the limit are left out.
    ///
    /// # Errors
    /// [`FormError::TooLarge`].
    pub fn prompt(&self) -> Result<FormPrompt, FormError> {
        let bounded = |part, json: &Json| {
            let value = Value::from(json);
            match (value.as_bytes().len(), MAX_PROMPT_SCHEMA) {
                (size, limit) if size > limit => Err(FormError::TooLarge { part, size, limit }),
                _ => Ok(value),
            }
        };
        let mut prompt = FormPrompt::new(bounded("schema", &self.schema)?);
        let texts: Vec<&str> = [self.title(), self.description()].into_iter().flatten().collect();
        prompt.text = (!texts.is_empty()).then(|| abridged(&texts.join("\n"), MAX_PROMPT_TEXT).into_owned());
        prompt.name = self.name.as_deref().map(|name| prefix(name, MAX_PROMPT_LABEL).to_owned());
        if self.ui.is_object() {
            prompt.ui_schema = Some(bounded("uiSchema", &self.ui)?);
        }
        prompt.data =
            Some(&self.data).filter(|data| data.is_object()).and_then(|data| bounded("data", data).ok());
        Ok(prompt)
    }

    /// Returns what an answer becomes.
    ///
    /// The answer is checked against the form's schema, as far as the feature `schema-validation` is there, and against
    /// what each input asks for. A form that was dismissed becomes nothing. So does one that was declined, unless it is
    /// a confirmation, which may name a tool for that. Of several events the first that is understood counts.
    ///
    /// `callable` maps a name of the server that issued the form to the name under which that tool can be called, and
    /// returns `None` for a tool that the server does not offer or that may not be called in this session. All
    /// parameters but the answer come from the stored form.
    ///
    /// # Errors
    /// Any [`FormError`] but `TooLarge`. Nothing is called then.
    pub fn submit(
        &self,
        answer: &PromptAnswer,
        callable: impl Fn(&str) -> Option<ToolName>,
    ) -> Result<Submission, FormError> {
        match answer.outcome {
            Decision::Submitted => {
                let data = answer.data.as_ref().and_then(|data| data.decode().ok()).unwrap_or_default();
                self.check(&data)?;
                if self.is_confirmation && data[CONFIRM] != true {
                    return self.on_decline.reached(None, callable);
                }
                self.on_submit.reached(Some(self.sent(data)), callable)
            }
            Decision::Declined => self.on_decline.reached(None, callable),
            _ => Ok(Submission::Nothing),
        }
    }

    /// Checks the data of an answer.
    fn check(&self, data: &Json) -> Result<(), FormError> {
        // The schema compares each value with each of the values that it lists.
        let comparisons = values(&self.schema).saturating_mul(values(data));
        if comparisons > MAX_COMPARISONS {
            let input = self.title.clone().unwrap_or_default();
            return Err(FormError::Answer {
                input,
                rule: "it has too many values for its choices".to_owned(),
            });
        }
        DataSchema::compile(&self.schema)?.check(data)?;
        for input in &self.inputs {
            match data.get(&input.name).filter(|value| !value.is_null()) {
                Some(value) => check::value(input, value, &self.range)
                    .map_err(|rule| FormError::Answer { input: input.name.clone(), rule })?,
                None if input.is_required && input.asks() => {
                    return Err(FormError::Answer {
                        input: input.name.clone(),
                        rule: "it is required".into(),
                    });
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Returns the value that the called tool gets. A form sends all of its data. A customer-care widget sends only the
    /// value of its input; if the person chose several options, it sends their values in one text, with commas.
    fn sent(&self, data: Json) -> Json {
        let [only] = self.inputs() else { return data };
        if !self.is_single {
            return data;
        }
        let value = data[&only.name].clone();
        match (&only.kind, value.as_array()) {
            (InputKind::Several(_), Some(values)) => {
                let values =
                    values.iter().map(|it| it.as_str().map_or_else(|| it.to_string(), str::to_owned));
                values.collect::<Vec<_>>().join(",").into()
            }
            _ => value,
        }
    }
}

impl Target {
    fn reached(
        &self,
        value: Option<Json>,
        callable: impl Fn(&str) -> Option<ToolName>,
    ) -> Result<Submission, FormError> {
        match self {
            Self::Tool { tool, parameters, input } => {
                let name = callable(tool)
                    .ok_or_else(|| FormError::Tool { tool: prefix(tool, MAX_PROMPT_LABEL).to_owned() })?;
                let mut arguments = parameters.clone();
                if let (Some(input), Some(value)) = (input, value) {
                    arguments.insert(input.clone(), value);
                }
                Ok(Submission::Call { tool: name, arguments: Value::from(Json::Object(arguments)) })
            }
            Self::Message(message) => Ok(Submission::Message(message.clone())),
            Self::Nothing => Ok(Submission::Nothing),
        }
    }
}

/// Reads an event, or the first of a list that is understood.
fn first_target(events: &Json) -> Target {
    match events.as_array() {
        Some(events) => {
            events.iter().map(target).find(|target| *target != Target::Nothing).unwrap_or(Target::Nothing)
        }
        None => target(events),
    }
}

fn target(event: &Json) -> Target {
    match (event["type"].as_str(), text(&event["tool"]), text(&event["message"])) {
        (None | Some("tool"), Some(tool), _) => Target::Tool {
            tool,
            parameters: event["parameters"].as_object().cloned().unwrap_or_default(),
            input: text(&event["map_input_to"]),
        },
        (Some("message"), _, Some(message)) => Target::Message(message),
        _ => Target::Nothing,
    }
}

/// Returns the number of values in a value. It does not recurse, because nothing limits the depth here.
fn values(json: &Json) -> usize {
    let (mut count, mut rest) = (0, vec![json]);
    while let Some(value) = rest.pop() {
        count += 1;
        match value {
            Json::Object(map) => rest.extend(map.values()),
            Json::Array(list) => rest.extend(list),
            _ => {}
        }
    }
    count
}

fn text(json: &Json) -> Option<String> {
    json.as_str().map(str::to_owned)
}

//! Fills in forms at the terminal: one field after the other, a line each.

use serde_json::{Map, Value as Json, json};

use crate::cli::terminal::{
    failure::hint,
    questions::{Open, Word},
    screen, text,
};
use toolbridge::{
    Value,
    adapter::orchestrate::{Dialog, Form, Input, InputKind},
    prompt::{FormPrompt, PromptAnswer},
    result::Widget,
};

/// The longest form that is shown, in bytes of its lines: what a person reads. A longer one is declined.
const SHOWN: usize = 16 << 10;

/// The longest name in a reason, in characters.
const MAX_NAME: usize = 400;

/// A field that a person types in.
struct Field {
    input: Input,
    schema: Json,
    /// The value of a field that is left empty, if it has one.
    default: Option<Json>,
}

/// Asks the fields of a form. A form that cannot be filled in here is declined.
pub(in crate::cli) async fn fill_in(
    ask: &FormPrompt,
    asked: Vec<String>,
    question: &mut Open,
) -> PromptAnswer {
    let fields = match fields(ask) {
        Ok(fields) => fields,
        Err(reason) => {
            screen::print(&asked);
            hint(&format!("the form is declined: {reason}"));
            question.close();
            return PromptAnswer::declined();
        }
    };
    let number = question.number();
    if fields.is_empty() {
        question.print(asked, vec![format!("type `yes {number}` to accept, or `no {number}` to decline")]);
        return match question.answer().await {
            Some(Word::Yes) => {
                PromptAnswer::submitted(&json!({})).unwrap_or_else(|_| PromptAnswer::cancelled())
            }
            Some(_) => PromptAnswer::declined(),
            None => PromptAnswer::cancelled(),
        };
    }
    let how = format!(
        "type a line for each field, or `answer {number} …` if other questions are open; `no {number}` declines the form"
    );
    question.take_text();
    let mut data = Map::new();
    for (n, field) in fields.iter().enumerate() {
        let mut choices = if n == 0 { vec![how.clone()] } else { Vec::new() };
        choices.extend(field.rows());
        if n == 0 {
            question.print(asked.clone(), choices);
        } else {
            question.go_on(choices);
        }
        loop {
            match question.answer().await {
                Some(Word::Text(line)) => match field.read(&line) {
                    Ok(value) => {
                        data.extend(value.map(|value| (field.input.name.clone(), value)));
                        break;
                    }
                    Err(reason) => question.remark(Some(&reason)),
                },
                Some(Word::No) => return PromptAnswer::declined(),
                Some(Word::Yes | Word::Option(_)) => {
                    question.again();
                    question.remark(None);
                }
                None => return PromptAnswer::cancelled(),
            }
        }
    }
    question.close();
    PromptAnswer::submitted(&data).unwrap_or_else(|_| PromptAnswer::cancelled())
}

/// Returns the fields of a form, or why it cannot be filled in here.
fn fields(ask: &FormPrompt) -> Result<Vec<Field>, String> {
    let of = |value: Option<&Value>| value.map(Value::to_json).unwrap_or_default();
    let (schema, data) = (ask.schema.to_json(), of(ask.data.as_ref()));
    let widget = json!({"json_schema": schema, "ui_schema": of(ask.ui_schema.as_ref()), "form_data": data});
    let inputs = match Form::of(&Widget::new(widget)) {
        Some(form) => form.inputs().to_vec(),
        None => Vec::new(),
    };
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str);
    if let Some(name) = required.clone().find(|name| inputs.iter().all(|input| input.name != *name)) {
        return Err(format!("it demands {}, which it does not describe", text::line(name, MAX_NAME)));
    }
    let mut fields = Vec::new();
    for input in inputs.into_iter().filter(Input::asks) {
        let schema = schema["properties"][&input.name].clone();
        let default = data.get(&input.name).or_else(|| schema.get("default")).filter(|it| !it.is_null());
        let default = default.cloned();
        let can_be_typed = !matches!(input.kind, InputKind::FileUpload | InputKind::Other);
        if can_be_typed {
            fields.push(Field { input, schema, default });
        } else if input.is_required && default.is_none() {
            return Err(format!("the field {} cannot be typed in", text::line(&input.title, MAX_NAME)));
        }
    }
    let size = fields.iter().flat_map(Field::lines).map(|line| line.len()).sum::<usize>();
    if size > SHOWN {
        return Err(format!("it has {size} bytes of text, and at most {SHOWN} are shown"));
    }
    Ok(fields)
}

impl Field {
    /// Returns the lines as rows of the terminal, with the mark of what somebody else wrote.
    fn rows(&self) -> Vec<String> {
        self.lines().iter().flat_map(|line| screen::foreign(line)).collect()
    }

    /// Returns the title with what may be typed, the description, and the choices.
    fn lines(&self) -> Vec<String> {
        let Input { title, description, is_required, kind, .. } = &self.input;
        let what = match kind {
            InputKind::Checkbox => Some("yes or no"),
            InputKind::Number if self.is_whole() => Some("a whole number"),
            InputKind::Number => Some("a number"),
            InputKind::Several(_) | InputKind::Table { .. } => Some("numbers, with commas between them"),
            InputKind::Radio(_) | InputKind::ComboBox(_) => Some("a number"),
            InputKind::Date => Some("a date"),
            InputKind::Time => Some("a time of day"),
            InputKind::DateTime => Some("a date and a time of day"),
            InputKind::DateRange => Some("two dates with `to` between them"),
            _ => None,
        };
        let empty = match &self.default {
            Some(default) => Some(format!("`-` for {}", text::plain(&self.label(default)))),
            None => (!is_required).then(|| "`-` for none".to_owned()),
        };
        let hints: Vec<String> = what.map(str::to_owned).into_iter().chain(empty).collect();
        let hints = if hints.is_empty() { String::new() } else { format!(" ({})", hints.join("; ")) };
        let mut lines = vec![format!("{}{hints}:", text::plain(title))];
        lines.extend(description.as_ref().map(|it| format!("  {}", text::plain(it))));
        for (at, choice) in self.input.choices().iter().enumerate() {
            lines.push(format!("  {}: {}", at + 1, text::plain(&choice.label)));
        }
        lines
    }

    /// Returns what a person calls a value.
    fn label(&self, value: &Json) -> String {
        let choice = self.input.choices().iter().find(|choice| choice.value == *value);
        match (choice, value) {
            (Some(choice), _) => choice.label.clone(),
            (None, Json::Bool(is_set)) => if *is_set { "yes" } else { "no" }.to_owned(),
            (None, Json::String(text)) => text.clone(),
            (None, other) => other.to_string(),
        }
    }

    /// Reads a line. An empty one or `-` is the default, or leaves the field out.
    fn read(&self, line: &str) -> Result<Option<Json>, String> {
        if matches!(line.trim(), "" | "-") {
            return match &self.default {
                None if self.input.is_required => Err("a value is needed".to_owned()),
                default => Ok(default.clone()),
            };
        }
        let value = self.value(line)?;
        self.check(&value)?;
        Ok(Some(value))
    }

    /// Reads a line as it is read when a person says it.
    fn value(&self, line: &str) -> Result<Json, String> {
        let name = self.input.name.as_str();
        let alone = json!({"properties": {name: self.schema}, "required": [name]});
        let not_read = || "that cannot be read".to_owned();
        let form = Form::of(&Widget::new(json!({ "json_schema": alone }))).ok_or_else(not_read)?;
        let mut dialog = Dialog::new(&form);
        dialog.answer(line).map_err(|text| match text.strip_prefix("Please say ") {
            Some(rest) => format!("type {rest}"),
            None => text,
        })?;
        let data = dialog.finish().and_then(|answer| answer.data).ok_or_else(not_read)?;
        Ok(data.to_json()[name].take())
    }

    fn is_whole(&self) -> bool {
        self.schema["type"] == "integer"
    }

    /// Checks the limits that a person can be told. Whoever asks checks the rest.
    fn check(&self, value: &Json) -> Result<(), String> {
        let limit = |key: &str| self.schema[key].as_f64();
        let length = match value {
            Json::String(text) => Some((text.chars().count(), "minLength", "maxLength", "characters")),
            Json::Array(values) => Some((values.len(), "minItems", "maxItems", "choices")),
            _ => None,
        };
        if let Some((length, least, most, of)) = length {
            let length = length as f64;
            return match (limit(least), limit(most)) {
                (Some(least), _) if length < least => Err(format!("at least {least} {of} are needed")),
                (_, Some(most)) if length > most => Err(format!("at most {most} {of} are possible")),
                _ => Ok(()),
            };
        }
        let Some(number) = value.as_f64() else { return Ok(()) };
        if self.is_whole() && number.fract() != 0.0 {
            return Err("type a whole number".to_owned());
        }
        match (limit("minimum"), limit("maximum")) {
            (Some(least), _) if number < least => Err(format!("it must be at least {least}")),
            (_, Some(most)) if number > most => Err(format!("it must be at most {most}")),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(schema: Json) -> FormPrompt {
        FormPrompt::new(schema.into())
    }

    fn field(schema: &Json, is_required: bool) -> Field {
        let required = if is_required { json!(["it"]) } else { json!([]) };
        let ask = form(json!({"type": "object", "properties": {"it": schema}, "required": required}));
        fields(&ask).unwrap().pop().unwrap()
    }

    #[test]
    fn line_is_read_by_the_type_of_its_field() {
        let reads = |schema: &Json, line: &str| field(schema, true).read(line);
        let choices = json!({"type": "string", "oneOf": [{"const": "r", "title": "Rome"}, {"const": "o", "title": "Oslo"}]});
        let named = json!({"type": "string", "enum": ["r", "o"], "enumNames": ["Rome", "Oslo"]});
        let several =
            json!({"type": "array", "items": {"type": "string", "enum": ["r", "o"]}, "minItems": 1});
        for (schema, line, value) in [
            (json!({"type": "string"}), " Ada ", json!("Ada")),
            (json!({"type": "string"}), "yes", json!("yes")),
            (json!({"type": "boolean"}), "yes", json!(true)),
            (json!({"type": "boolean"}), "no", json!(false)),
            (json!({"type": "integer", "minimum": 1}), "12", json!(12)),
            (json!({"type": "number"}), "-1.5", json!(-1.5)),
            (choices.clone(), "2", json!("o")),
            (choices.clone(), "rome", json!("r")),
            (named.clone(), "Oslo", json!("o")),
            (several.clone(), "1, 2", json!(["r", "o"])),
        ] {
            assert_eq!(reads(&schema, line), Ok(Some(value)), "{schema} {line}");
        }
        for (schema, line) in [
            (json!({"type": "string", "minLength": 3}), "ab"),
            (json!({"type": "string", "maxLength": 3}), "größer"),
            (json!({"type": "boolean"}), "perhaps"),
            (json!({"type": "integer"}), "1.5"),
            (json!({"type": "integer", "maximum": 9}), "12"),
            (json!({"type": "number"}), "many"),
            (choices, "3"),
            (named, "Paris"),
            (several, "1, 3"),
            (json!({"type": "string"}), ""),
            (json!({"type": "string"}), "-"),
        ] {
            assert!(reads(&schema, line).is_err(), "{schema} {line}");
        }
    }

    #[test]
    fn empty_line_is_the_default_or_leaves_the_field_out() {
        let with_default = json!({"type": "integer", "default": 3});
        for line in ["", " - "] {
            assert_eq!(field(&with_default, true).read(line), Ok(Some(json!(3))));
            assert_eq!(field(&json!({"type": "string"}), false).read(line), Ok(None));
        }
        // The data of the form replace the defaults of its schema.
        let mut ask = form(json!({"properties": {"it": with_default}}));
        ask.data = Some(json!({"it": 7}).into());
        assert_eq!(fields(&ask).unwrap()[0].read("-"), Ok(Some(json!(7))));
    }

    #[test]
    fn field_shows_its_title_hints_and_choices_escaped() {
        let city = json!({
            "type": "string", "title": "City\u{1b}[2J", "description": "Where\u{202e}?", "enum": ["r", "o"],
            "enumNames": ["Rome", "Os\u{7}lo"], "default": "r",
        });
        assert_eq!(
            field(&city, true).lines(),
            ["City\\u{1b}[2J (a number; `-` for Rome):", "  Where\\u{202e}?", "  1: Rome", "  2: Os\\u{7}lo"]
        );
        let flag = field(&json!({"type": "boolean", "default": false}), true);
        assert_eq!(flag.lines(), ["it (yes or no; `-` for no):"]);
        assert_eq!(field(&json!({"type": "string"}), false).lines(), ["it (`-` for none):"]);
    }

    #[test]
    fn form_with_a_field_that_cannot_be_typed_in_is_refused() {
        let nested = json!({"type": "object", "properties": {}});
        let of = |properties: Json, required: Json| {
            fields(&form(json!({"type": "object", "properties": properties, "required": required})))
                .map(|fields| fields.len())
        };
        assert!(of(json!({"it": nested}), json!(["it"])).unwrap_err().contains("cannot be typed in"));
        assert!(of(json!({}), json!(["gone"])).is_err());
        assert_eq!(of(json!({"it": nested, "name": {"type": "string"}}), json!(["name"])), Ok(1));
        assert_eq!(of(json!({}), json!([])), Ok(0));
    }
}

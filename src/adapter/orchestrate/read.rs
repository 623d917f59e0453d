//! Reads the inputs of a form out of its schemas, and of the customer-care widgets.

use serde_json::{Value as Json, json};

use super::input::{Choice, Input, InputKind};

/// The most choices and rows that are read of one input.
const MAX_CHOICES: usize = 1_000;

/// The most inputs that are read of one form.
const MAX_INPUTS: usize = 200;

/// Reads the inputs of a form, in the order in which it shows them.
pub(super) fn inputs(schema: &Json, ui: &Json, data: &Json) -> Vec<Input> {
    let Some(properties) = schema["properties"].as_object() else { return Vec::new() };
    let ordered = ui["ui:order"].as_array().into_iter().flatten().filter_map(Json::as_str);
    let mut names: Vec<&str> = Vec::new();
    for name in ordered.chain(properties.keys().map(String::as_str)).take(2 * MAX_INPUTS) {
        if properties.contains_key(name) && !names.contains(&name) {
            names.push(name);
        }
    }
    let required = |name: &str| {
        schema["required"].as_array().is_some_and(|names| names.iter().any(|it| it.as_str() == Some(name)))
    };
    let read = |name: &str| {
        let (schema, ui) = (&properties[name], &ui[name]);
        let text = |keys: [(&Json, &str); 2]| {
            keys.iter().filter_map(|(of, key)| of[*key].as_str()).find(|it| !it.is_empty()).map(str::to_owned)
        };
        Input {
            name: name.to_owned(),
            title: text([(ui, "ui:title"), (schema, "title")]).unwrap_or_else(|| name.to_owned()),
            description: text([(ui, "ui:description"), (schema, "description")]),
            is_required: required(name),
            kind: kind(schema, ui, &data[name]),
        }
    };
    names.into_iter().take(MAX_INPUTS).map(read).collect()
}

fn kind(schema: &Json, ui: &Json, data: &Json) -> InputKind {
    match (ui["ui:widget"].as_str(), schema["type"].as_str()) {
        (Some("TextareaWidget"), _) => InputKind::TextArea,
        (Some("RadioWidget"), _) => InputKind::Radio(choices(schema, ui)),
        (Some("ComboboxWidget"), _) => InputKind::ComboBox(choices(schema, ui)),
        (Some("CheckboxWidget"), _) => InputKind::Checkbox,
        (Some("NumberWidget"), _) => InputKind::Number,
        (Some("DateWidget"), Some("array")) => InputKind::DateRange,
        (Some("DateWidget"), _) => InputKind::Date,
        (Some("FileUpload"), _) => InputKind::FileUpload,
        (Some("FileDownloadWidget"), _) => InputKind::FileDownload,
        (Some("Table"), _) => {
            let is_selectable = schema["tableType"].as_str().is_some_and(|it| it != "dataTable");
            InputKind::Table { rows: rows(schema, data), is_selectable }
        }
        _ if schema["enum"].is_array() => InputKind::ComboBox(choices(schema, ui)),
        (_, Some("boolean")) => InputKind::Checkbox,
        (_, Some("array")) if !choices(&schema["items"], ui).is_empty() => {
            InputKind::Several(choices(&schema["items"], ui))
        }
        _ if !choices(schema, ui).is_empty() => InputKind::ComboBox(choices(schema, ui)),
        (_, Some("integer" | "number")) => InputKind::Number,
        (_, Some("string")) => InputKind::Text,
        _ => InputKind::Other,
    }
}

/// Reads the choices of an input: the values of its `enum`, otherwise the constants of its `oneOf` or `anyOf`. The
/// report of a recording shows the same labels.
fn choices(schema: &Json, ui: &Json) -> Vec<Choice> {
    let values = list(&schema["enum"]);
    if values.is_empty() {
        let named = |option: &Json| {
            let value = option.get("const")?;
            let title = option["title"].as_str().filter(|title| !title.is_empty());
            Some(Choice::new(title.map_or_else(|| shown(value), str::to_owned), value.clone()))
        };
        let options =
            [&schema["oneOf"], &schema["anyOf"]].map(list).into_iter().find(|list| !list.is_empty());
        return options.unwrap_or_default().iter().take(MAX_CHOICES).filter_map(named).collect();
    }
    let labels =
        [&ui["ui:enumNames"], &schema["enumNames"]].map(list).into_iter().find(|list| !list.is_empty());
    let label = |n: usize, value: &Json| {
        let label = labels.and_then(|labels| labels.get(n)).and_then(Json::as_str);
        label.filter(|label| !label.is_empty()).map_or_else(|| shown(value), str::to_owned)
    };
    let values = values.iter().take(MAX_CHOICES).enumerate();
    values.map(|(n, value)| Choice::new(label(n, value), value.clone())).collect()
}

fn list(json: &Json) -> &[Json] {
    json.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Reads the rows of a table, which are the form's initial data.
fn rows(schema: &Json, data: &Json) -> Vec<Choice> {
    let headers = schema["headers"].as_array();
    let label = |row: &Json| {
        let keys = headers.into_iter().flatten().filter_map(|header| header["key"].as_str());
        keys.map(|key| shown(&row[key])).collect::<Vec<_>>().join(", ")
    };
    let rows = data.as_array().into_iter().flatten().take(MAX_CHOICES);
    rows.map(|row| Choice::new(label(row), row.clone())).collect()
}

fn shown(value: &Json) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Reads what a customer-care widget asks for, and the schema of the value.
pub(super) fn care(widget: &Json) -> Option<(InputKind, Json)> {
    let collects = widget["collection_type"].as_str();
    let mut schema = json!({});
    let kind = match (widget["type"].as_str()?, collects) {
        ("datetime", Some("time")) => InputKind::Time,
        ("datetime", Some("datetime")) => InputKind::DateTime,
        ("datetime", _) => InputKind::Date,
        ("number", collects) => number(widget, collects, &mut schema),
        ("options", _) => {
            let read =
                |option: &Json| Some(Choice::new(shown(&option["label"]), option.get("value")?.clone()));
            let options = widget["options"].as_array().into_iter().flatten().take(MAX_CHOICES);
            let options: Vec<Choice> = options.filter_map(read).collect();
            let values: Vec<&Json> = options.iter().map(|option| &option.value).collect();
            if widget["is_multi_selection"] == true {
                schema = json!({"type": "array", "minItems": 1, "items": {"enum": values}});
                return Some((InputKind::Several(options), schema));
            }
            schema = json!({ "enum": values });
            InputKind::ComboBox(options)
        }
        ("text", collects) => {
            if let Some(pattern) = widget.get("regex_expression").filter(|_| collects == Some("regex")) {
                schema["pattern"] = pattern.clone();
            }
            InputKind::Text
        }
        _ => return None,
    };
    if !matches!(kind, InputKind::Number | InputKind::ComboBox(_)) {
        schema["type"] = "string".into();
    }
    Some((kind, schema))
}

/// A phone number, a postal code or a number with bounds on its digits is a text, since leading zeros count.
fn number(widget: &Json, collects: Option<&str>, schema: &mut Json) -> InputKind {
    let digits = |key: &str| widget[key].as_u64().and_then(|digits| usize::try_from(digits).ok());
    let (min, max) = (digits("min_digits"), digits("max_digits"));
    if matches!(collects, Some("phone" | "zip_code")) || min.is_some() || max.is_some() {
        return InputKind::Digits { min, max };
    }
    schema["type"] = if collects == Some("integer") { "integer".into() } else { "number".into() };
    for (key, keyword) in [("min_number", "minimum"), ("max_number", "maximum")] {
        if widget[key].is_number() {
            schema[keyword] = widget[key].clone();
        }
    }
    InputKind::Number
}

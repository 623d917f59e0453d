//! Lays out widgets: forms by their JSON Schema, menus by their options, and others as JSON.

use serde_json::{Map, Value as Json};

use super::{
    Line, LineStyle, json,
    lines::{Page, clean},
};
use crate::tool::Widget;

/// The most fields of a form and options of a field that are read.
const MAX_ITEMS: usize = 200;

/// The longest text of a field or option, in bytes.
const MAX_WORDS: usize = 500;

/// Where the forms of several systems have their schema.
const SCHEMAS: [&str; 4] = ["json_schema", "requestedSchema", "schema", "inputSchema"];

/// Shows a widget.
pub(super) fn show(page: &mut Page, widget: &Widget) {
    let value = widget.value().to_json();
    let schema =
        SCHEMAS.iter().map(|name| &value[name]).chain([&value]).find(|it| it["properties"].is_object());
    let title = [widget.title(), schema.and_then(|schema| schema["title"].as_str()), value["title"].as_str()];
    let title = title.into_iter().flatten().next().unwrap_or_default();
    let lines = match (schema, options(&value, &Json::Null)) {
        (Some(schema), _) => form(schema, &value),
        (None, options) if !options.is_empty() => menu(&value, &options),
        _ => {
            let text = value.to_string();
            return page
                .section(title, "widget")
                .extend(json::Pretty::new(&text), |line| Line::of(LineStyle::Mono, line));
        }
    };
    let note = if schema.is_some() { "form" } else { "choice" };
    page.section(title, note).extend(lines.into_iter(), |line| line);
}

/// The fields of a form, numbered, with their options.
fn form(schema: &Json, widget: &Json) -> Vec<Line> {
    let ui = &widget["ui_schema"];
    let mut lines = about(schema);
    let Some(fields) = schema["properties"].as_object() else { return lines };
    let names = in_order(fields, &ui["ui:order"]);
    for (n, name) in names.iter().take(MAX_ITEMS).enumerate() {
        let (field, ui) = (&fields[*name], &ui[*name]);
        let title = text(&[&ui["ui:title"], &field["title"]]).unwrap_or_else(|| words(name));
        let is_required = elements(&schema["required"]).iter().any(|it| it.as_str() == Some(name));
        let notes: Vec<String> = [
            is_required.then(|| "required".to_owned()),
            kind(field),
            not_null(&field["default"])
                .or_else(|| not_null(&widget["form_data"][*name]))
                .map(|it| format!("default {it}")),
        ]
        .into_iter()
        .flatten()
        .collect();
        let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) };
        lines.push(Line::of(LineStyle::Plain, format!("{}. {title}{notes}", n + 1)));
        if let Some(description) = text(&[&ui["ui:description"], &field["description"]]) {
            lines.push(Line::of(LineStyle::Note, format!("   {description}")));
        }
        let choices =
            options(field, ui).into_iter().map(|option| Line::of(LineStyle::Plain, format!("   • {option}")));
        lines.extend(choices);
    }
    let count = names.len().saturating_sub(MAX_ITEMS);
    if count > 0 {
        lines.push(Line::of(LineStyle::Note, format!("… {count} more fields")));
    }
    let buttons = [&ui["ui:submitButtonOptions"]["submitText"], &ui["ui:cancelButtonOptions"]["cancelText"]];
    let buttons: Vec<String> =
        buttons.iter().filter_map(|it| text(&[it])).map(|it| format!("[{it}]")).collect();
    if !buttons.is_empty() {
        lines.push(Line::of(LineStyle::Note, buttons.join(" ")));
    }
    lines
}

/// One question with numbered options.
fn menu(widget: &Json, options: &[String]) -> Vec<Line> {
    let mut lines = about(widget);
    let numbered = options.iter().enumerate();
    lines.extend(numbered.map(|(n, option)| Line::of(LineStyle::Plain, format!("{}. {option}", n + 1))));
    lines
}

fn about(of: &Json) -> Vec<Line> {
    text(&[&of["description"]]).map(|text| Line::of(LineStyle::Plain, text)).into_iter().collect()
}

/// Returns the names of the fields: those that the form orders first, then the others.
fn in_order<'a>(fields: &'a Map<String, Json>, order: &Json) -> Vec<&'a str> {
    let ordered = elements(order).iter().take(MAX_ITEMS).filter_map(Json::as_str);
    let mut names: Vec<&str> = Vec::new();
    for name in ordered.filter_map(|name| fields.get_key_value(name)).map(|(name, _)| name.as_str()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let first = names.clone();
    names.extend(fields.keys().map(String::as_str).filter(|name| !first.contains(name)));
    names
}

/// Returns what a field holds, if that says more than a text would.
fn kind(field: &Json) -> Option<String> {
    let format = text(&[&field["format"]]);
    let kind = format.or_else(|| text(&[&field["type"]]).filter(|kind| kind != "string"))?;
    let bounds = [("minimum", "from"), ("maximum", "to")];
    let bounds =
        bounds.iter().filter_map(|(name, word)| Some(format!(" {word} {}", not_null(&field[*name])?)));
    Some(bounds.fold(kind, |kind, bound| kind + &bound))
}

/// Returns the labels of what can be chosen, as the adapter for watsonx Orchestrate asks for them.
fn options(field: &Json, ui: &Json) -> Vec<String> {
    let values = elements(&field["enum"]);
    if !values.is_empty() {
        let named = [&ui["ui:enumNames"], &field["enumNames"]].map(elements);
        let names = named.into_iter().find(|names| !names.is_empty()).unwrap_or_default();
        let label = |(n, value): (usize, &Json)| {
            text(&[names.get(n).unwrap_or(&Json::Null)]).or_else(|| not_null(value))
        };
        return values.iter().take(MAX_ITEMS).enumerate().filter_map(label).collect();
    }
    for list in [&field["options"], &field["oneOf"], &field["anyOf"]] {
        let label = |option: &Json| {
            text(&[&option["label"], &option["title"], option])
                .or_else(|| not_null(&option["const"]))
                .or_else(|| not_null(&option["value"]))
        };
        let labels: Vec<String> = elements(list).iter().filter_map(label).take(MAX_ITEMS).collect();
        if !labels.is_empty() {
            return labels;
        }
    }
    match &field["items"] {
        items @ Json::Object(_) => options(items, ui),
        _ => Vec::new(),
    }
}

fn elements(list: &Json) -> &[Json] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Returns the first of these that is a text that is not empty.
fn text(of: &[&Json]) -> Option<String> {
    of.iter().filter_map(|it| it.as_str()).find(|it| !it.is_empty()).map(words)
}

fn not_null(value: &Json) -> Option<String> {
    match value {
        Json::Null => None,
        Json::String(text) => Some(words(text)),
        Json::Bool(_) | Json::Number(_) => Some(value.to_string()),
        Json::Array(_) | Json::Object(_) => Some("…".to_owned()),
    }
}

fn words(text: &str) -> String {
    clean(text, MAX_WORDS)
}

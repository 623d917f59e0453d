//! Reads and writes a tool's definition as a registration (type 70) carries it.

use std::time::Duration;

use serde_json::{Map, Value as Json};

use super::RegisteredTool;
use crate::{
    tool::{BargeIn, InvalidToolName, Tool, ToolHints, ToolOptions},
    value::Value,
};

/// The longest title, and the longest name of a source, of a tool, in bytes. They are labels that people read.
const MAX_LABEL: usize = 256;

impl From<&Tool> for RegisteredTool {
    fn from(tool: &Tool) -> Self {
        let options = tool.tool_options();
        let hints = tool.hints();
        let barge_in = options.barge_in;
        let patience = options.patience.and_then(|limit| u64::try_from(limit.as_millis()).ok());
        // In the order of their names.
        let annotations = [
            ("destructive", hints.destructive.map(Json::from)),
            ("idempotent", hints.idempotent.map(Json::from)),
            ("meta", tool.meta().cloned()),
            ("onBargeIn", (barge_in != BargeIn::default()).then(|| Json::from(barge_in.as_str()))),
            ("openWorld", hints.open_world.map(Json::from)),
            ("outputSchema", tool.output_schema().cloned()),
            ("readOnly", hints.read_only.map(Json::from)),
            ("shortTitle", tool.short_title().map(Json::from)),
            ("source", tool.source().map(Json::from)),
            ("timeoutMs", patience.map(Json::from)),
            ("title", tool.title().map(Json::from)),
        ];
        let annotations: Map<String, Json> =
            annotations.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
        Self {
            name: tool.name().to_string(),
            description: tool.description().to_owned(),
            input_schema: tool.input_schema().and_then(|schema| Value::encode(schema).ok()),
            annotations: if annotations.is_empty() { None } else { Value::encode(&annotations).ok() },
        }
    }
}

impl RegisteredTool {
    /// Returns the tool's definition. Annotations that are unknown, too long or have another type are left out.
    ///
    /// # Errors
    /// The name is invalid.
    pub fn tool(&self) -> Result<Tool, InvalidToolName> {
        let annotations = self.annotations.as_ref().map(Value::to_json).unwrap_or_default();
        let hint = |key: &str| annotations.get(key).and_then(Json::as_bool);
        let text = |key: &str| annotations.get(key).and_then(Json::as_str);
        let label = |key: &str| text(key).filter(|label| label.len() <= MAX_LABEL);
        let mut options = ToolOptions::default()
            .barge_in(text("onBargeIn").and_then(BargeIn::from_text).unwrap_or_default());
        let patience = annotations.get("timeoutMs").and_then(Json::as_u64).filter(|limit| *limit > 0);
        options.patience = patience.map(Duration::from_millis);
        let hints = ToolHints {
            destructive: hint("destructive"),
            idempotent: hint("idempotent"),
            read_only: hint("readOnly"),
            open_world: hint("openWorld"),
        };
        let mut tool =
            Tool::new(self.name.parse()?, self.description.as_str()).options(options).with_hints(hints);
        if let Some(schema) = &self.input_schema {
            tool = tool.schema(schema.to_json());
        }
        if let Some(title) = label("title") {
            tool = tool.with_title(title);
        }
        if let Some(schema) = annotations.get("outputSchema").filter(|schema| schema.is_object()) {
            tool = tool.with_output_schema(schema.clone());
        }
        if let Some(title) = label("shortTitle") {
            tool = tool.with_short_title(title);
        }
        if let Some(meta) = annotations.get("meta").filter(|meta| meta.is_object()) {
            tool = tool.with_meta(meta.clone());
        }
        if let Some(source) = label("source") {
            tool = tool.with_source(source);
        }
        Ok(tool)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn definition_survives_a_registration() {
        let options =
            ToolOptions::destructive().idempotent().read_only().open_world().barge_in(BargeIn::Report);
        let options = options.patience(Duration::from_secs(90));
        let tool = Tool::new("lamp".parse().unwrap(), "Turns on the lamp")
            .schema(json!({"type": "object"}))
            .options(options)
            .with_title("Lamp")
            .with_output_schema(json!({"type": "object", "properties": {"on": {}}}))
            .with_source("kitchen");
        assert_eq!(RegisteredTool::from(&tool).tool().unwrap(), tool);
    }

    #[test]
    fn hint_that_is_false_is_other_than_one_that_is_unknown() {
        let mut hints = ToolHints::default();
        (hints.destructive, hints.open_world, hints.read_only) = (Some(false), Some(false), Some(true));
        let tool = Tool::new("lamp".parse().unwrap(), "")
            .with_hints(hints)
            .with_short_title("Light")
            .with_meta(json!({"example.com/a": [1]}));
        let registered = RegisteredTool::from(&tool);
        let annotations = json!({
            "destructive": false, "readOnly": true, "openWorld": false, "shortTitle": "Light", "meta": {"example.com/a": [1]},
        });
        let written = registered.annotations.as_ref().unwrap().to_json();
        assert_eq!(written, annotations);
        let read = registered.tool().unwrap();
        assert_eq!((&read, read.hints()), (&tool, hints));
        assert!(!read.tool_options().destructive && read.tool_options().read_only);
    }

    #[test]
    fn plain_definition_has_no_annotations() {
        let tool = Tool::new("lamp".parse().unwrap(), "");
        assert_eq!(RegisteredTool::from(&tool).annotations, None);
    }

    #[test]
    fn title_and_source_have_at_most_256_bytes() {
        let registered = |label: &str| RegisteredTool {
            name: "lamp".into(),
            annotations: Some(Value::from(json!({"title": label, "source": label}))),
            ..RegisteredTool::default()
        };
        let read = registered(&"x".repeat(256)).tool().unwrap();
        assert_eq!((read.title().map(str::len), read.source().map(str::len)), (Some(256), Some(256)));
        let read = registered(&"x".repeat(257)).tool().unwrap();
        assert_eq!((read.title(), read.source()), (None, None));
    }

    #[test]
    fn annotations_of_another_type_are_left_out() {
        let annotations = json!({"destructive": "yes", "title": 7, "outputSchema": [], "source": null, "onBargeIn": "?", "timeoutMs": -1});
        let registered = RegisteredTool {
            name: "lamp".into(),
            annotations: Some(Value::from(annotations)),
            ..RegisteredTool::default()
        };
        assert_eq!(registered.tool().unwrap(), Tool::new("lamp".parse().unwrap(), ""));
    }
}

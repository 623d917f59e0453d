//! Turns a server's definition of a tool into a tool of the room.

use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

use super::headers::ParameterHeaders;
use crate::{Tool, ToolName, ToolOptions, adapter::source::policy::Policy, tools::ToolHints};

/// The longest title, in bytes. A longer one is cut.
const MAX_TITLE: usize = 256;

/// The largest `_meta` of a tool that is carried, in bytes. A larger one is left out.
const MAX_META: usize = 2 << 10;

/// The most bytes of a `_meta` and an output schema together: an assistant refuses annotations of more than 17 KiB, which
/// hold three texts of 256 bytes, too. The schema goes first.
const MAX_META_AND_SCHEMA: usize = 15 << 10;

/// One entry of a tool list. Hints that are not booleans count as absent.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Definition {
    pub(super) name: String,
    title: Option<Value>,
    description: Option<Value>,
    input_schema: Option<Value>,
    pub(super) output_schema: Option<Value>,
    #[serde(default)]
    annotations: Option<Value>,
    #[serde(default)]
    execution: Option<Value>,
    #[serde(default, rename = "_meta")]
    meta: Option<Value>,
}

impl Definition {
    /// Reads a definition.
    ///
    /// # Errors
    /// It has no name, or it is not an object.
    pub(super) fn read(text: &RawValue) -> Result<Self, String> {
        serde_json::from_str(text.get()).map_err(|_| "its definition has no name".to_owned())
    }

    /// Returns why this tool cannot be offered, if it cannot.
    pub(super) fn refusal(&self) -> Option<&'static str> {
        let demands_tasks =
            self.execution.as_ref().and_then(|it| it.get("taskSupport")?.as_str()) == Some("required");
        let is_no_object = self.input_schema.as_ref().is_some_and(|schema| !schema.is_object());
        match (demands_tasks, is_no_object) {
            _ if self.name.is_empty() => Some("its definition has no name"),
            (true, _) => Some("it runs as a task only"),
            (_, true) => Some("its input schema is not an object"),
            _ => None,
        }
    }

    /// Returns the headers that parameters have besides, or what is wrong with one.
    pub(super) fn headers(&self) -> Result<ParameterHeaders, String> {
        self.input_schema.as_ref().map_or_else(|| Ok(ParameterHeaders::default()), ParameterHeaders::read)
    }

    /// Returns the tool of the room with this name.
    pub(super) fn tool(&self, name: ToolName, source: &str, policy: &Policy) -> Tool {
        let hint = |key: &str| self.annotations.as_ref().and_then(|it| it.get(key)?.as_bool());
        let mut hints = ToolHints::default();
        (hints.read_only, hints.destructive) = (hint("readOnlyHint"), hint("destructiveHint"));
        (hints.idempotent, hints.open_world) = (hint("idempotentHint"), hint("openWorldHint"));
        let is = |hint: Option<bool>| hint == Some(true);
        let mut options =
            ToolOptions::default().consent(policy.consent(is(hints.read_only), is(hints.destructive)));
        if let Some(limit) = policy.timeout {
            options = options.timeout(limit).patience(limit);
        }
        let mut tool = Tool::new(name, text(self.description.as_ref()))
            .schema(self.input_schema.clone().unwrap_or_else(|| Value::Object(Map::new())))
            .options(options)
            .with_hints(hints)
            .with_source(source);
        let of_annotations = self.annotations.as_ref().and_then(|it| it.get("title"));
        let title = text(self.title.as_ref().or(of_annotations));
        if !title.is_empty() {
            tool = tool.with_title(cut(title, MAX_TITLE));
        }
        if let Some(title) = of_annotations.and_then(Value::as_str).filter(|it| !it.is_empty()) {
            tool = tool.with_short_title(cut(title, MAX_TITLE));
        }
        let size = |value: Option<&Value>| value.map_or(0, |it| it.to_string().len());
        let space = MAX_META_AND_SCHEMA.saturating_sub(size(self.output_schema.as_ref())).min(MAX_META);
        if let Some(meta) = self.meta.as_ref().filter(|it| it.is_object() && size(Some(it)) <= space) {
            tool = tool.with_meta(meta.clone());
        }
        match &self.output_schema {
            Some(schema) if schema.is_object() => tool.with_output_schema(schema.clone()),
            _ => tool,
        }
    }
}

fn text(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or_default()
}

fn cut(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    format!("{}…", crate::value::prefix(text, limit - '…'.len_utf8()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Consent;

    fn tool(definition: &Value, policy: &Policy) -> Tool {
        let text = RawValue::from_string(definition.to_string()).unwrap();
        Definition::read(&text).unwrap().tool("t".parse().unwrap(), "server", policy)
    }

    fn consent(annotations: &Value, policy: &Policy) -> Consent {
        tool(&json!({"name": "t", "annotations": annotations}), policy).tool_options().effective_consent()
    }

    #[test]
    fn hints_of_the_server_never_lower_what_the_user_has_set() {
        let own = Policy::default();
        let trusting = Policy { trusts_hints: true, ..Policy::default() };
        let read_only = json!({"readOnlyHint": true});
        let destructive = json!({"destructiveHint": true, "readOnlyHint": true});
        assert_eq!(consent(&json!({}), &own), Consent::OncePerSession);
        assert_eq!(consent(&json!(null), &own), Consent::OncePerSession);
        assert_eq!(consent(&read_only, &own), Consent::OncePerSession);
        assert_eq!(consent(&read_only, &trusting), Consent::Never);
        assert_eq!(consent(&destructive, &trusting), Consent::Always);
        let always = Policy { consent: Some(Consent::Always), ..trusting.clone() };
        assert_eq!(consent(&read_only, &always), Consent::Always);
        let never = Policy { consent: Some(Consent::Never), ..own };
        assert_eq!(consent(&destructive, &never), Consent::Never);
    }

    #[test]
    fn hints_that_are_false_the_title_of_the_annotations_and_meta_are_kept() {
        let annotations =
            json!({"destructiveHint": false, "openWorldHint": false, "readOnlyHint": "no", "title": "Short"});
        let definition =
            json!({"name": "t", "title": "Long", "annotations": annotations, "_meta": {"example.com/a": 1}});
        let tool = tool(&definition, &Policy::default());
        let hints = tool.hints();
        assert_eq!((hints.destructive, hints.open_world), (Some(false), Some(false)));
        assert_eq!((hints.read_only, hints.idempotent), (None, None));
        assert_eq!((tool.title(), tool.short_title()), (Some("Long"), Some("Short")));
        assert_eq!(tool.meta(), Some(&json!({"example.com/a": 1})));
    }

    #[test]
    fn strange_members_are_ignored_and_long_titles_are_cut() {
        let tool = tool(
            &json!({"name": "t", "title": 7, "description": "é".repeat(1_000), "annotations": {"title": "Short"}, "outputSchema": false}),
            &Policy::default(),
        );
        assert_eq!(tool.title(), None);
        assert_eq!(tool.description().len(), 2_000, "the participant cuts it, and says so");
        assert_eq!(tool.output_schema(), None);
        assert_eq!(tool.source(), Some("server"));
    }

    #[test]
    fn tool_that_demands_tasks_is_refused() {
        let text =
            RawValue::from_string(json!({"name": "t", "execution": {"taskSupport": "required"}}).to_string());
        assert_eq!(Definition::read(&text.unwrap()).unwrap().refusal(), Some("it runs as a task only"));
    }
}

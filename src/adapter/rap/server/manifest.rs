//! Writes the manifest, from which the runtime learns of the toolset.

use serde_json::{Map, Value as Json, json};

use crate::{
    Tool,
    adapter::sink::Catalog,
    tools::{DEFAULT_TIMEOUT, Offer},
};

/// Returns the manifest, or `None` if there is no tool: a toolset has at least one.
///
/// Source: <https://infinity.hydro.run/docs/rap/spec/toolset>.
pub(super) fn manifest(name: &str, endpoint: &str, catalog: &Catalog) -> Option<Json> {
    let tools: Vec<Json> = catalog.entries().map(|(name, offer)| definition(name, offer)).collect();
    let description = "Tools of the apps that are connected to a LiveKit room.";
    (!tools.is_empty())
        .then(|| json!({"name": name, "description": description, "endpoint": endpoint, "tools": tools}))
}

fn definition(name: &str, offer: &Offer) -> Json {
    let tool = &offer.tool;
    let description =
        Some(tool.description()).filter(|it| !it.is_empty()).or_else(|| tool.title()).unwrap_or(name);
    let mut definition = json!({
        "name": name, "description": description, "inputSchema": input_schema(tool.input_schema()),
    });
    let annotations = annotations(tool);
    if !annotations.is_empty() {
        definition["annotations"] = annotations.into();
    }
    definition
}

/// Returns the hints that are known. An option that is not set says nothing, because most tools set none.
fn annotations(tool: &Tool) -> Map<String, Json> {
    let (hints, options) = (tool.hints(), tool.tool_options());
    let limit = options.patience.or(options.timeout).unwrap_or_default();
    let known = |is_set: bool| is_set.then_some(true);
    let hints = [
        ("readOnly", hints.read_only),
        ("destructive", hints.destructive),
        ("idempotent", hints.idempotent),
        ("longRunning", known(limit > DEFAULT_TIMEOUT)),
        ("x-structured", known(tool.output_schema().is_some())), // the text of a result is JSON
    ];
    hints.into_iter().filter_map(|(hint, is_so)| Some((hint.to_owned(), is_so?.into()))).collect()
}

/// Returns the schema as it was registered. Arguments are always an object.
fn input_schema(schema: Option<&Json>) -> Json {
    match schema {
        Some(schema @ Json::Object(fields)) if fields.get("type") == Some(&json!("object")) => schema.clone(),
        Some(Json::Object(fields)) => {
            let mut fields = fields.clone();
            fields.insert("type".to_owned(), "object".into());
            fields.into()
        }
        _ => json!({"type": "object"}),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use super::*;
    use crate::{ToolOptions, adapter::filter::Filter, tools::ToolHints};

    fn tool(name: &str, options: ToolOptions) -> Tool {
        Tool::new(name.parse().unwrap(), "what it does").options(options)
    }

    #[test]
    fn manifest_lists_the_tools_under_names_that_models_allow() {
        let tools =
            [tool("fs.read", ToolOptions::default().read_only()), tool("ring", ToolOptions::default())];
        let offers = tools.map(|tool| (tool.name().clone(), Offer::new(tool, "phone".into())));
        let catalog = Catalog::new(BTreeMap::from(offers), &Filter::default());
        let expected = json!({
            "name": "home", "description": "Tools of the apps that are connected to a LiveKit room.",
            "endpoint": "http://h/invoke",
            "tools": [
                {"name": "fs__read", "description": "what it does", "inputSchema": {"type": "object"},
                 "annotations": {"readOnly": true}},
                {"name": "ring", "description": "what it does", "inputSchema": {"type": "object"}},
            ],
        });
        assert_eq!(manifest("home", "http://h/invoke", &catalog), Some(expected));
        let none = Catalog::new(BTreeMap::new(), &Filter::default());
        assert_eq!(manifest("home", "http://h/invoke", &none), None);
    }

    #[test]
    fn only_hints_that_are_known_are_listed() {
        let shown = |options: ToolOptions| Json::from(annotations(&tool("t", options)));
        assert_eq!(shown(ToolOptions::default()), json!({}));
        assert_eq!(
            shown(ToolOptions::destructive().idempotent()),
            json!({"destructive": true, "idempotent": true})
        );
        let hints = ToolHints { destructive: Some(false), ..ToolHints::default() };
        let harmless = tool("t", ToolOptions::default().idempotent()).with_hints(hints);
        assert_eq!(Json::from(annotations(&harmless)), json!({"destructive": false, "idempotent": true}));
        let long = ToolOptions::default().patience(Duration::from_secs(300));
        assert_eq!(shown(long), json!({"longRunning": true}));
        let short = ToolOptions::default().patience(Duration::from_secs(30));
        assert_eq!(shown(short), json!({}));
    }

    #[test]
    fn schema_is_listed_as_it_was_registered() {
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "x-own": [1]});
        assert_eq!(input_schema(Some(&schema)), schema);
        assert_eq!(
            input_schema(Some(&json!({"minProperties": 1}))),
            json!({"minProperties": 1, "type": "object"})
        );
        assert_eq!(input_schema(Some(&json!(true))), json!({"type": "object"}));
        let output = tool("t", ToolOptions::default()).with_output_schema(json!({"type": "object"}));
        assert_eq!(
            definition("t", &Offer::new(output, "phone".into()))["annotations"],
            json!({"x-structured": true})
        );
    }
}

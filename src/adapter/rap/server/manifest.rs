//! Writes the manifest, from which the runtime learns of the toolset.

use serde_json::{Map, Value as Json, json};

use crate::{
    Tool,
    adapter::sink::{Catalog, Listed},
    tools::DEFAULT_TIMEOUT,
};

/// Returns the manifest, or `None` if there is no tool: a toolset has at least one.
///
/// Source: <https://infinity.hydro.run/docs/rap/spec/toolset>.
pub(super) fn manifest(name: &str, endpoint: &str, catalog: &Catalog) -> Option<Json> {
    let tools: Vec<Json> = catalog.entries().map(|(name, entry)| definition(name, entry)).collect();
    let description = "Tools of the apps that are connected to a LiveKit room.";
    (!tools.is_empty())
        .then(|| json!({"name": name, "description": description, "endpoint": endpoint, "tools": tools}))
}

fn definition(name: &str, Listed { offer, fitted }: &Listed) -> Json {
    let mut definition =
        json!({"name": name, "description": fitted.description(), "inputSchema": fitted.schema()});
    let annotations = annotations(&offer.tool);
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

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use super::*;
    use crate::{
        ToolOptions,
        adapter::filter::Filter,
        tools::{Offer, ToolHints},
    };

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
                {"name": "fs__read", "description": "what it does", "inputSchema": {"type": "object", "properties": {}},
                 "annotations": {"readOnly": true}},
                {"name": "ring", "description": "what it does", "inputSchema": {"type": "object", "properties": {}}},
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
    fn tool_with_an_output_schema_is_structured() {
        let tool = tool("t", ToolOptions::default()).with_output_schema(json!({"type": "object"}));
        assert_eq!(Json::from(annotations(&tool)), json!({"x-structured": true}));
    }
}

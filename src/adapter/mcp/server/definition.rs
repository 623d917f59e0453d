//! Describes the tools of a room as MCP lists them.

use std::sync::Arc;

use rmcp::model::{JsonObject, MetaObject, Tool, ToolAnnotations};
use serde_json::{Value as Json, json};

use crate::adapter::sink::{Catalog, Listed};

/// Returns the definitions, sorted by name.
pub(super) fn definitions(catalog: &Catalog) -> Vec<Tool> {
    catalog.entries().map(|(name, entry)| definition(name, entry)).collect()
}

/// Returns the definition of a tool under this name.
pub(super) fn definition(name: &str, Listed { offer, fitted }: &Listed) -> Tool {
    let tool = &offer.tool;
    let schema = fitted.schema().as_object().cloned().unwrap_or_default();
    let mut listed = Tool::new(name.to_owned(), fitted.description().to_owned(), schema);
    listed.title = tool.title().map(str::to_owned);
    listed.output_schema = output_schema(tool).cloned().map(Arc::new);
    listed.annotations = annotations(tool);
    listed.meta = tool.meta().and_then(Json::as_object).cloned().map(MetaObject);
    listed
}

/// Returns the hints that are known, if any is. An option that is not set says nothing, because most tools set none, and
/// hosts assume the worst of a tool without hints. A tool that changes nothing destroys nothing either.
fn annotations(tool: &crate::Tool) -> Option<ToolAnnotations> {
    let hints = tool.hints();
    let destructive = hints.destructive.or_else(|| hints.read_only.filter(|it| *it).map(|_| false));
    let title = tool.short_title().map(str::to_owned);
    let known =
        ToolAnnotations::from_raw(title, hints.read_only, destructive, hints.idempotent, hints.open_world);
    (known != ToolAnnotations::default()).then_some(known)
}

/// Returns whether hosts expect structured data in a result of this tool: they refuse a result without.
pub(super) fn promises_data(tool: &crate::Tool) -> bool {
    output_schema(tool).is_some()
}

/// Returns the schema of results. Hosts refuse any whose type is not `object`.
fn output_schema(tool: &crate::Tool) -> Option<&JsonObject> {
    tool.output_schema().and_then(Json::as_object).filter(|it| it.get("type") == Some(&json!("object")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Tool, ToolOptions,
        tools::{Offer, ToolHints},
    };

    fn listed(tool: Tool) -> rmcp::model::Tool {
        definition("t", &Listed::new(Offer::new(tool, "phone".into())).unwrap())
    }

    #[test]
    fn output_schema_that_is_no_object_is_not_shown() {
        let tool = |schema| {
            Tool::new("t".parse().unwrap(), "").with_output_schema(schema).options(ToolOptions::destructive())
        };
        let shown = |schema| listed(tool(schema));
        assert!(shown(json!({"type": "number"})).output_schema.is_none());
        assert!(shown(json!({"type": "object"})).output_schema.is_some());
    }

    #[test]
    fn hint_that_is_false_a_short_title_and_meta_are_shown() {
        let mut hints = ToolHints::default();
        (hints.destructive, hints.open_world) = (Some(false), Some(false));
        let tool = Tool::new("t".parse().unwrap(), "").with_hints(hints);
        let tool = tool.with_short_title("T").with_meta(json!({"example.com/a": 1}));
        let shown = serde_json::to_value(listed(tool)).unwrap();
        let annotations = json!({"title": "T", "destructiveHint": false, "openWorldHint": false});
        assert_eq!((&shown["annotations"], &shown["_meta"]), (&annotations, &json!({"example.com/a": 1})));
    }

    #[test]
    fn only_hints_that_are_known_are_shown() {
        let shown = |options: ToolOptions| {
            let tool = Tool::new("t".parse().unwrap(), "").options(options);
            serde_json::to_value(listed(tool)).unwrap()["annotations"].take()
        };
        assert_eq!(shown(ToolOptions::default()), json!(null));
        assert_eq!(shown(ToolOptions::destructive()), json!({"destructiveHint": true}));
        assert_eq!(
            shown(ToolOptions::default().read_only()),
            json!({"readOnlyHint": true, "destructiveHint": false})
        );
        let both = ToolOptions::default().idempotent().open_world();
        assert_eq!(shown(both), json!({"idempotentHint": true, "openWorldHint": true}));
        // What contradicts itself counts as destructive.
        let odd = ToolOptions::destructive().read_only();
        assert_eq!(shown(odd), json!({"readOnlyHint": true, "destructiveHint": true}));
    }
}

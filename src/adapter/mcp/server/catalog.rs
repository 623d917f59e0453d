//! The tools of a room as MCP lists them: names, definitions, and which are offered.

use std::{collections::BTreeMap, sync::Arc};

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value as Json, json};

use crate::{NameMap, NameRules, Offer, ToolName, ToolOptions, adapter::mcp::pattern::matches};

/// Which tools are offered.
#[derive(Debug, Default)]
pub(super) struct Filter {
    allowed: Vec<String>,
    denied: Vec<String>,
}

impl Filter {
    pub(super) fn allow(&mut self, pattern: String) {
        self.allowed.push(pattern);
    }

    pub(super) fn deny(&mut self, pattern: String) {
        self.denied.push(pattern);
    }

    /// A pattern applies to the tool's own name and to the name that a host sees if no other tool has the same, whatever
    /// name it is listed under, so that a second client with the same tool cannot evade it.
    fn offers(&self, offer: &Offer) -> bool {
        let name = offer.tool.name().as_str();
        let with_owner = format!("{}.{name}", offer.owner);
        let names = [name, &with_owner].map(|name| [name.to_owned(), shown(name)]).concat();
        let is_in =
            |patterns: &[String]| patterns.iter().any(|it| names.iter().any(|name| matches(it, name)));
        (self.allowed.is_empty() || is_in(&self.allowed)) && !is_in(&self.denied)
    }
}

/// Returns the name under which a host sees a tool of this name.
fn shown(name: &str) -> String {
    NameMap::new(NameRules::Model, [name]).converted(name).unwrap_or_default().to_owned()
}

/// The tools that a host can call, by the names that it sees.
pub(super) struct Catalog(BTreeMap<String, Entry>);

/// A tool and its owner.
pub(super) type Entry = Arc<Offer>;

impl Catalog {
    pub(super) fn new(mut offers: BTreeMap<ToolName, Offer>, filter: &Filter) -> Self {
        offers.retain(|_, offer| filter.offers(offer));
        let names = NameMap::new(NameRules::Model, offers.keys().map(ToolName::as_str));
        let named = |(name, offer): (ToolName, Offer)| {
            Some((names.converted(name.as_str())?.to_owned(), offer.into()))
        };
        Self(offers.into_iter().filter_map(named).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, name: &str) -> Option<&Entry> {
        self.0.get(name)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.0.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// Returns the definitions, sorted by name.
    pub(super) fn tools(&self) -> Vec<Tool> {
        self.entries().map(|(name, offer)| definition(name, offer)).collect()
    }
}

/// Returns the definition of a tool under this name.
pub(super) fn definition(name: &str, offer: &Offer) -> Tool {
    let (tool, options) = (&offer.tool, offer.tool.tool_options());
    let mut listed =
        Tool::new(name.to_owned(), tool.description().to_owned(), input_schema(tool.input_schema()));
    listed.title = tool.title().map(str::to_owned);
    // Hosts refuse any other output schema, and compare `structuredContent` with it.
    let output =
        tool.output_schema().and_then(Json::as_object).filter(|it| it.get("type") == Some(&json!("object")));
    listed.output_schema = output.cloned().map(Arc::new);
    listed.annotations = annotations(options);
    listed
}

/// Returns the hints that are known, if any is. An option that is not set says nothing, because most tools set none, and
/// hosts assume the worst of a tool without hints. A tool that changes nothing destroys nothing either.
fn annotations(options: &ToolOptions) -> Option<ToolAnnotations> {
    let set = |option: bool| option.then_some(true);
    let is_known = options.destructive || options.read_only;
    let destructive = is_known.then_some(options.destructive);
    let (idempotent, open_world) = (set(options.idempotent), set(options.open_world));
    let known = ToolAnnotations::from_raw(None, set(options.read_only), destructive, idempotent, open_world);
    (known != ToolAnnotations::default()).then_some(known)
}

/// Returns the schema as it was registered. MCP demands that it is an object whose type is `object`.
fn input_schema(schema: Option<&Json>) -> JsonObject {
    let mut schema = schema.and_then(Json::as_object).cloned().unwrap_or_default();
    if schema.get("type") != Some(&json!("object")) {
        schema.insert("type".to_owned(), json!("object"));
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tool;

    fn offers(list: &[(&str, &str, &str)]) -> BTreeMap<ToolName, Offer> {
        let offer = |(listed, name, owner): &(&str, &str, &str)| {
            (
                listed.parse().unwrap(),
                Offer::new(Tool::new(name.parse().unwrap(), "what it does"), (*owner).into()),
            )
        };
        list.iter().map(offer).collect()
    }

    fn listed(filter: &Filter, list: &[(&str, &str, &str)]) -> Vec<String> {
        Catalog::new(offers(list), filter).entries().map(|(name, _)| name.to_owned()).collect()
    }

    #[test]
    fn dotted_name_is_listed_with_underscores() {
        let list = [("fs.read", "fs.read", "desk"), ("phone.ring", "ring", "phone")];
        assert_eq!(listed(&Filter::default(), &list), ["fs__read", "phone__ring"]);
    }

    #[test]
    fn denied_tool_stays_denied_under_the_name_with_its_owner() {
        let mut filter = Filter::default();
        filter.deny("erase".to_owned());
        let list = [
            ("erase", "erase", "phone"),
            ("a.erase", "erase", "a"),
            ("b.erase", "erase", "b"),
            ("ring", "ring", "b"),
        ];
        assert_eq!(listed(&filter, &list), ["ring"]);
    }

    #[test]
    fn pattern_selects_names_owners_and_prefixes_and_denial_wins() {
        let list =
            [("fs.read", "fs.read", "desk"), ("fs.erase", "fs.erase", "desk"), ("ring", "ring", "phone")];
        let mut filter = Filter::default();
        filter.allow("fs.*".to_owned());
        assert_eq!(listed(&filter, &list), ["fs__erase", "fs__read"]);
        filter.deny("desk.fs.erase".to_owned());
        assert_eq!(listed(&filter, &list), ["fs__read"]);
        filter.allow("phone.*".to_owned());
        assert_eq!(listed(&filter, &list), ["fs__read", "ring"]);
    }

    #[test]
    fn pattern_applies_to_the_names_that_a_host_sees_too() {
        let list = [
            ("desk.ring", "ring", "desk"),
            ("fs.erase", "fs.erase", "desk"),
            ("fs.read", "fs.read", "desk"),
            ("phone.ring", "ring", "phone"),
        ];
        let mut filter = Filter::default();
        filter.deny("fs__erase".to_owned());
        filter.deny("phone__ring".to_owned());
        assert_eq!(listed(&filter, &list), ["desk__ring", "fs__read"]);
        filter.allow("fs__*".to_owned());
        assert_eq!(listed(&filter, &list), ["fs__read"]);
        // A tool that takes the name does not free the other one.
        let clash = [("fs.erase", "fs.erase", "desk"), ("fs__erase", "fs__erase", "phone")];
        assert!(listed(&filter, &clash).is_empty());
    }

    #[test]
    fn schema_without_a_type_is_shown_as_an_object() {
        assert_eq!(Json::Object(input_schema(None)), json!({"type": "object"}));
        assert_eq!(Json::Object(input_schema(Some(&json!(true)))), json!({"type": "object"}));
        let schema = json!({"type": "object", "properties": {"n": {"$ref": "https://unknown.example/n"}}});
        assert_eq!(Json::Object(input_schema(Some(&schema))), schema);
    }

    #[test]
    fn output_schema_that_is_no_object_is_not_shown() {
        let tool = |schema| {
            Tool::new("t".parse().unwrap(), "").with_output_schema(schema).options(ToolOptions::destructive())
        };
        let shown = |schema| definition("t", &Offer::new(tool(schema), "phone".into()));
        assert!(shown(json!({"type": "number"})).output_schema.is_none());
        assert!(shown(json!({"type": "object"})).output_schema.is_some());
    }

    #[test]
    fn only_hints_that_are_known_are_shown() {
        let shown = |options: ToolOptions| {
            let tool = Tool::new("t".parse().unwrap(), "").options(options);
            let listed = definition("t", &Offer::new(tool, "phone".into()));
            serde_json::to_value(listed).unwrap()["annotations"].take()
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

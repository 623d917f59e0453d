//! Reads and checks the manifest of a toolset, and turns it into tools of the room.
//!
//! A fault refuses the whole manifest, as
//! [the specification](https://infinity.hydro.run/docs/rap/spec/basic/toolsets#validation) asks. Limits of this crate leave
//! out single tools, whose toolset is valid.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::{Map, Value as Json};

use crate::{
    Tool, ToolName, ToolOptions,
    adapter::{
        json::{DocumentError, object},
        source::policy::Policy,
    },
    tools::{DataSchema, NameMap, NameRules, ToolHints},
};

/// The longest name of a toolset or a tool, in characters. The specification sets it.
const MAX_NAME: usize = 128;

/// The most tools of a toolset. Others are left out.
const MAX_TOOLS: usize = 1_024;

/// The largest input schema, in bytes. A tool with a larger one is left out.
const MAX_SCHEMA: usize = 256 << 10;

/// Why a manifest is refused. It has only what is needed to find the fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ManifestError {
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("`{0}` is missing or has the wrong type")]
    Field(&'static str),
    #[error("its name has {length} characters; 1 to {limit} are allowed")]
    Name { length: usize, limit: usize },
    #[error("`tools` is empty")]
    NoTools,
    #[error("tool {index} has no `{field}`, or one of the wrong type")]
    Tool { index: usize, field: &'static str },
    #[error("the name of tool {index} has {length} characters; 1 to {limit} are allowed")]
    ToolName { index: usize, length: usize, limit: usize },
    #[error("the tool {0:?} is there twice")]
    Duplicate(String),
}

/// A toolset as its server describes it.
#[derive(Debug)]
pub(super) struct Manifest {
    pub(super) endpoint: String,
    definitions: Vec<Definition>,
}

/// One tool of a manifest.
#[derive(Debug)]
struct Definition {
    name: String,
    description: String,
    schema: Json,
    annotations: Map<String, Json>,
}

/// A tool that is offered.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) tool: Tool,
    /// The toolset's name for it.
    pub(super) operation: String,
    /// Whether its results are JSON, as its annotation `x-structured` says.
    pub(super) is_structured: bool,
    schema: Option<DataSchema>,
}

impl Listed {
    /// Checks the arguments of a call. They are left to the tool if its schema exceeds the bounds.
    pub(super) fn check(&self, arguments: &Json) -> Result<(), String> {
        self.schema
            .as_ref()
            .map_or(Ok(()), |schema| schema.check(arguments).map_err(|error| error.to_string()))
    }
}

/// A tool that is not offered, and why.
pub(super) type LeftOut = (String, String);

impl Manifest {
    pub(super) fn read(text: &str) -> Result<Self, ManifestError> {
        let manifest = object(text)?;
        let name = manifest.get("name").and_then(Json::as_str).ok_or(ManifestError::Field("name"))?;
        let length = name.chars().count();
        if !(1..=MAX_NAME).contains(&length) {
            return Err(ManifestError::Name { length, limit: MAX_NAME });
        }
        for (key, is_right) in [
            ("description", manifest.get("description").is_none_or(|it| it.is_string() || it.is_null())),
            (
                "needsMigration",
                manifest.get("needsMigration").is_none_or(|it| it.is_boolean() || it.is_null()),
            ),
        ] {
            if !is_right {
                return Err(ManifestError::Field(key));
            }
        }
        let endpoint =
            manifest.get("endpoint").and_then(Json::as_str).ok_or(ManifestError::Field("endpoint"))?;
        let tools = manifest.get("tools").and_then(Json::as_array).ok_or(ManifestError::Field("tools"))?;
        if tools.is_empty() {
            return Err(ManifestError::NoTools);
        }
        let (mut names, mut definitions) = (BTreeSet::new(), Vec::new());
        for (index, tool) in tools.iter().enumerate() {
            let definition = Definition::read(tool, index)?;
            if !names.insert(definition.name.clone()) {
                return Err(ManifestError::Duplicate(definition.name));
            }
            definitions.push(definition);
        }
        Ok(Self { endpoint: endpoint.to_owned(), definitions })
    }

    /// Returns the tools that the user wants and that can be offered, and those that cannot.
    pub(super) fn tools(
        self,
        source: &str,
        policy: &Policy,
        reserved: Option<&ToolName>,
    ) -> (BTreeMap<ToolName, Arc<Listed>>, Vec<LeftOut>) {
        let mut left_out = Vec::new();
        let mut kept: Vec<Definition> = Vec::new();
        for definition in self.definitions.into_iter().filter(|it| policy.offers(&it.name)) {
            let size = definition.schema.to_string().len();
            let reason = if size > MAX_SCHEMA {
                format!("its input schema has {size} bytes; the limit is {MAX_SCHEMA}")
            } else if kept.len() >= MAX_TOOLS {
                format!("the toolset has more than {MAX_TOOLS} tools")
            } else {
                kept.push(definition);
                continue;
            };
            left_out.push((definition.name, reason));
        }
        let names = NameMap::new(NameRules::Tool, kept.iter().map(|it| policy.in_room(&it.name)));
        let mut tools = BTreeMap::new();
        for definition in kept {
            let name = names.converted(&policy.in_room(&definition.name)).and_then(|it| it.parse().ok());
            match name {
                Some(name) if Some(&name) == reserved => {
                    let reason = "it has the name of a tool that is built in".to_owned();
                    left_out.push((definition.name, reason));
                }
                Some(name) => {
                    _ = tools
                        .insert(ToolName::clone(&name), Arc::new(definition.listed(name, source, policy)))
                }
                None => left_out.push((definition.name, "its name cannot be converted".to_owned())),
            }
        }
        (tools, left_out)
    }
}

impl Definition {
    fn read(tool: &Json, index: usize) -> Result<Self, ManifestError> {
        let wrong = |field| ManifestError::Tool { index, field };
        let text = |field: &'static str| tool.get(field).and_then(Json::as_str).ok_or_else(|| wrong(field));
        let name = text("name")?;
        let length = name.chars().count();
        if !(1..=MAX_NAME).contains(&length) {
            return Err(ManifestError::ToolName { index, length, limit: MAX_NAME });
        }
        let annotations = match tool.get("annotations") {
            None | Some(Json::Null) => Map::new(),
            Some(Json::Object(annotations)) => annotations.clone(),
            Some(_) => return Err(wrong("annotations")),
        };
        if tool.get("displayScript").is_some_and(|it| !it.is_string() && !it.is_null()) {
            return Err(wrong("displayScript"));
        }
        let schema =
            tool.get("inputSchema").filter(|it| it.is_object()).ok_or_else(|| wrong("inputSchema"))?;
        Ok(Self {
            name: name.to_owned(),
            description: text("description")?.to_owned(),
            schema: schema.clone(),
            annotations,
        })
    }

    fn listed(self, name: ToolName, source: &str, policy: &Policy) -> Listed {
        let hint = |key: &str| self.annotations.get(key).and_then(Json::as_bool);
        let has = |key: &str| hint(key) == Some(true);
        let mut hints = ToolHints::default();
        (hints.read_only, hints.destructive) = (hint("readOnly"), hint("destructive"));
        hints.idempotent = hint("idempotent");
        let consent = policy.consent(has("readOnly"), has("destructive"));
        let mut options = ToolOptions::default().consent(consent);
        if let Some(limit) = policy.timeout {
            options = options.timeout(limit).patience(limit);
        } else if has("longRunning") {
            options = options.patience(ToolOptions::LONGEST);
        }
        let schema = DataSchema::compile(&self.schema);
        if let Err(error) = &schema {
            tracing::debug!(source, tool = self.name, %error, "arguments are left to the tool");
        }
        let is_structured = has("x-structured");
        let tool = Tool::new(name, self.description).schema(self.schema).options(options);
        let tool = tool.with_hints(hints).with_source(source);
        Listed { tool, operation: self.name, is_structured, schema: schema.ok() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::Consent;

    fn tool(name: &str, more: &Json) -> Json {
        let mut tool = json!({"name": name, "description": "d", "inputSchema": {"type": "object"}});
        tool.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        tool
    }

    fn manifest(tools: &[Json]) -> Json {
        json!({"name": "set", "endpoint": "https://tool.example/invoke", "tools": tools})
    }

    fn read(manifest: &Json) -> Result<Manifest, ManifestError> {
        Manifest::read(&manifest.to_string())
    }

    fn reserved() -> ToolName {
        "p.cancel_subscription".parse().unwrap()
    }

    fn offered(tools: &[Json], policy: &Policy) -> (BTreeMap<ToolName, Arc<Listed>>, Vec<LeftOut>) {
        let mut policy = policy.clone();
        policy.filter.deny(["denied".to_owned()]);
        read(&manifest(tools)).unwrap().tools("source", &policy, Some(&reserved()))
    }

    #[test]
    fn rap_r18_fault_in_a_manifest_refuses_all_of_it() {
        let good = tool("good", &json!({}));
        assert!(read(&manifest(std::slice::from_ref(&good))).is_ok());
        let refused = |bad: Json| read(&manifest(&[good.clone(), bad])).unwrap_err().to_string();
        assert_eq!(refused(good.clone()), "the tool \"good\" is there twice");
        assert!(refused(tool("", &json!({}))).contains("tool 1 has 0 characters; 1 to 128"));
        assert!(refused(tool(&"n".repeat(129), &json!({}))).contains("tool 1 has 129 characters"));
        assert!(read(&manifest(&[tool(&"é".repeat(128), &json!({}))])).is_ok());
        for (field, value) in [
            ("name", json!(5)),
            ("description", json!(null)),
            ("inputSchema", json!(null)),
            ("inputSchema", json!(true)),
            ("annotations", json!([])),
            ("displayScript", json!(5)),
        ] {
            let error = refused(tool("other", &json!({field: value})));
            assert_eq!(error, format!("tool 1 has no `{field}`, or one of the wrong type"));
        }
        let with = |key: &str, value: Json| {
            let mut manifest = manifest(std::slice::from_ref(&good));
            manifest[key] = value;
            read(&manifest).unwrap_err()
        };
        assert_eq!(with("tools", json!([])), ManifestError::NoTools);
        assert_eq!(with("name", json!("")), ManifestError::Name { length: 0, limit: 128 });
        for key in ["name", "tools", "endpoint", "description", "needsMigration"] {
            assert_eq!(with(key, json!({})), ManifestError::Field(key), "{key}");
        }
        assert!(matches!(Manifest::read("[]"), Err(ManifestError::Document(DocumentError::NotAnObject))));
    }

    #[test]
    fn tool_beyond_a_limit_of_this_crate_is_left_out_alone() {
        let huge = json!({"inputSchema": {"type": "object", "x": "y".repeat(MAX_SCHEMA)}});
        let tools = [
            tool("good", &json!({})),
            tool("huge", &huge),
            tool("cancel subscription", &json!({})),
            tool("denied", &json!({})),
            tool("spaced name", &json!({"description": "é".repeat(1_000)})),
        ];
        let (offered, left_out) = offered(&tools, &Policy { prefix: Some("p".into()), ..Policy::default() });
        let names: Vec<_> = offered.keys().map(ToolName::as_str).collect();
        assert_eq!(names, ["p.good", "p.spaced_name"]);
        assert_eq!(offered.values().nth(1).unwrap().operation, "spaced name");
        assert_eq!(offered.values().nth(1).unwrap().tool.description().len(), 2_000);
        assert_eq!(left_out.iter().map(|it| &*it.0).collect::<Vec<_>>(), ["huge", "cancel subscription"]);
        assert!(left_out[0].1.contains("the limit is 262144"), "{left_out:?}");
    }

    #[test]
    fn rap_r26_destructive_tool_asks_each_time_and_a_hint_never_lowers_what_the_user_set() {
        let consent = |annotations: Json, policy: &Policy| {
            let (tools, _) = offered(&[tool("t", &json!({"annotations": annotations}))], policy);
            tools.values().next().unwrap().tool.tool_options().effective_consent()
        };
        let own = Policy::default();
        let trusting = Policy { trusts_hints: true, ..Policy::default() };
        assert_eq!(consent(json!({"destructive": true}), &own), Consent::Always);
        assert_eq!(consent(json!({"destructive": true, "readOnly": true}), &trusting), Consent::Always);
        assert_eq!(consent(json!({"destructive": "no"}), &own), Consent::OncePerSession);
        assert_eq!(consent(json!({"readOnly": true}), &own), Consent::OncePerSession);
        assert_eq!(consent(json!({"readOnly": true}), &trusting), Consent::Never);
        let always = Policy { consent: Some(Consent::Always), ..trusting };
        assert_eq!(consent(json!({"readOnly": true}), &always), Consent::Always);
    }

    #[test]
    fn annotations_set_limits_and_the_form_of_results() {
        let annotations = json!({"longRunning": true, "idempotent": true, "x-structured": true});
        let long = tool("t", &json!({"annotations": annotations}));
        let (tools, _) = offered(std::slice::from_ref(&long), &Policy::default());
        let listed = tools.values().next().unwrap();
        assert!(listed.is_structured && listed.tool.tool_options().idempotent);
        let known = tool("t", &json!({"annotations": {"destructive": false, "readOnly": "no"}}));
        let (tools, _) = offered(&[known], &Policy::default());
        let hints = tools.values().next().unwrap().tool.hints();
        assert_eq!((hints.destructive, hints.read_only, hints.idempotent), (Some(false), None, None));
        assert_eq!(listed.tool.tool_options().patience, Some(ToolOptions::LONGEST));
        let policy = Policy { timeout: Some(Duration::from_secs(5)), ..Policy::default() };
        let (tools, _) = offered(&[long], &policy);
        let options = tools.values().next().unwrap().tool.tool_options().clone();
        assert_eq!((options.patience, options.timeout), (policy.timeout, policy.timeout));
    }

    #[test]
    fn rap_r16_arguments_are_checked_within_bounds() {
        let schema = json!({"inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}});
        let unusable = json!({"inputSchema": {"$ref": "https://example.com/schema"}});
        let (tools, left_out) = offered(&[tool("a", &schema), tool("b", &unusable)], &Policy::default());
        assert!(left_out.is_empty());
        let [a, b] = ["a", "b"].map(|name| &tools[&name.parse::<ToolName>().unwrap()]);
        assert!(a.check(&json!({"n": 5})).is_ok());
        assert!(a.check(&json!({"n": "five"})).unwrap_err().contains("the data does not fit"));
        assert!(b.check(&json!({"n": "five"})).is_ok(), "it is left to the tool");
    }
}

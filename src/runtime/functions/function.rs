//! Stores one function behind a pointer, and the schema of its arguments.

use std::{future::Future, pin::Pin, sync::Arc};

use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value as Json, json};

use super::handler::{Handler, sealed::Seal};
use crate::{
    runtime::source::ToolContext,
    tool::{ErrorCode, Outcome, RegisterError, Tool, ToolError, ToolName, ToolOptions},
    value::Value,
};

pub(super) type Running = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A registered function.
#[derive(Clone)]
pub(super) struct Function<S> {
    pub(super) tool: Tool,
    pub(super) takes_context: bool,
    run: Run<S>,
}

/// A type-erased [`Handler`].
#[doc(hidden)]
pub struct Built<S> {
    pub(super) takes_context: bool,
    pub(super) schema: Option<fn() -> Json>,
    pub(super) options: ToolOptions,
    pub(super) run: Run<S>,
}

impl<S> std::fmt::Debug for Built<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Built").field("takes_context", &self.takes_context).finish_non_exhaustive()
    }
}

type Run<S> = Arc<dyn Fn(ToolContext, &S, Value) -> Running + Send + Sync>;

impl<S> Function<S> {
    pub(super) fn new<M>(
        name: ToolName,
        description: &str,
        handler: impl Handler<M, S>,
    ) -> Result<Self, RegisterError> {
        let built = handler.build(Seal);
        let schema = match built.schema {
            None => json!({"type": "object", "properties": {}}),
            Some(of_type) => {
                as_map(of_type()).ok_or_else(|| RegisterError::NotAMap { name: name.clone() })?
            }
        };
        let tool = Tool::new(name, description).schema(schema).options(built.options);
        Ok(Self { tool, takes_context: built.takes_context, run: built.run })
    }

    pub(super) fn run(&self, context: ToolContext, state: &S, arguments: Value) -> Running {
        (self.run)(context, state, arguments)
    }
}

/// Returns the JSON Schema (2020-12) of a type for a model, with definitions inlined where possible.
pub(super) fn schema_of<A: JsonSchema>() -> Json {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<A>();
    // The name of a Rust type is useless to a model.
    schema.remove("title");
    schema.to_value()
}

/// Decodes the arguments as the function's own type.
pub(super) fn arguments<A: DeserializeOwned>(body: &Value) -> Result<A, ToolError> {
    // The arguments match the schema, so only a rule of the type itself can fail here. The error's text may quote the
    // value.
    let refuse = |_| {
        let text = "the parameters fit the schema, but not the type of the tool's arguments";
        ToolError::new(ErrorCode::INVALID_PARAMETERS, text)
    };
    body.decode().map_err(refuse)
}

/// Encodes the function's return value.
pub(super) fn result<T: Serialize>(answer: Result<T, ToolError>) -> Outcome {
    Ok(Value::encode(&answer?)?)
}

/// Returns the schema if it accepts only maps, with `type` set to `object`.
fn as_map(schema: Json) -> Option<Json> {
    let Json::Object(mut schema) = schema else { return None };
    if !takes_maps_only(&schema) {
        return None;
    }
    schema.insert("type".to_owned(), "object".into());
    Some(Json::Object(schema))
}

/// An enum with an internal tag states its type in each variant rather than for the whole.
fn takes_maps_only(schema: &Map<String, Json>) -> bool {
    let variants = ["oneOf", "anyOf"].iter().find_map(|keyword| schema.get(*keyword)?.as_array());
    match schema.get("type") {
        Some(one) => one == "object",
        None => variants.is_some_and(|all| {
            !all.is_empty() && all.iter().all(|one| one.as_object().is_some_and(takes_maps_only))
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[expect(dead_code, reason = "read by its schema alone")]
    #[derive(Deserialize, JsonSchema)]
    struct Find {
        /// Part of a name
        name: String,
        near: Option<Place>,
    }

    #[expect(dead_code, reason = "read by its schema alone")]
    #[derive(Deserialize, JsonSchema)]
    struct Place {
        latitude: f64,
    }

    #[test]
    fn schema_is_inlined_and_without_titles() {
        assert_eq!(
            as_map(schema_of::<Find>()).unwrap(),
            json!({
                "type": "object",
                "properties": {
                    "name": {"type": "string", "description": "Part of a name"},
                    "near": {
                        "type": ["object", "null"],
                        "properties": {"latitude": {"type": "number", "format": "double"}},
                        "required": ["latitude"],
                    },
                },
                "required": ["name"],
            })
        );
    }

    #[test]
    fn arguments_are_a_map() {
        #[expect(dead_code, reason = "read by its schema alone")]
        #[derive(Deserialize, JsonSchema)]
        #[serde(tag = "kind")]
        enum Shape {
            Circle { radius: f64 },
            Square { side: f64 },
        }
        assert_eq!(as_map(schema_of::<Shape>()).unwrap()["type"], "object");
        assert!(as_map(schema_of::<BTreeMap<String, u32>>()).is_some());
        for not_a_map in [
            schema_of::<String>(),
            schema_of::<Vec<u32>>(),
            schema_of::<()>(),
            schema_of::<Option<Find>>(),
            schema_of::<Json>(),
        ] {
            assert_eq!(as_map(not_a_map), None);
        }
    }
}

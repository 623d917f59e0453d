//! Makes tools fit for models, in one form that all model APIs accept: [`ModelTool`].
//!
//! An API that refuses one tool refuses the whole request, so one app could silence the assistant for all. All doors to
//! models use this module: [`chat`](crate::chat), the MCP and RAP servers, the bindings and the line protocol. A tool that
//! fits stays as it is, byte for byte. The participant that runs a tool checks its arguments, so a looser schema loses
//! nothing. Rules of strict modes that change the meaning (all properties required) are not imposed.
//!
//! | rule | who refuses otherwise | source |
//! | --- | --- | --- |
//! | N: a name has 1 to 64 of `A–Z a–z 0–9 _ -` | OpenAI, Bedrock | [Bedrock][n1] |
//! | N: and begins with a letter or `_` | Gemini | [Vertex AI][n2], [gemini-cli 9535][n3] |
//! | D: a description is not empty | Bedrock | [Bedrock][n1] |
//! | S1: the schema has the type `object`, and `properties` | OpenAI | [langchain-mcp-adapters 137][s1] |
//! | S2: no `anyOf`, `oneOf`, `allOf`, `not`, `enum` or `const` at its top; what it says is in the description | Anthropic, OpenAI | [claude-code 5973][s2a], [langchainjs 9804][s2b] |
//! | S3: each value has one type, or alternatives in `anyOf`; `{}` is none | Vertex AI, Gemini 3 | [directus 8][s3a], [inspect_ai 3097][s3b] |
//! | S4: an array has `items`, which is one schema | OpenAI | [aichat 1049][s4] |
//! | S5: enumerated values are texts; others are in the description | Gemini | [azure-devops-mcp 145][s5a], [9router 359][s5b] |
//! | S6: only keywords of Gemini's schemas, and `additionalProperties` and `$schema`, which every conversion for it removes. So no `$ref`, `const`, `oneOf`, `allOf`, `not`, `if`, `exclusiveMinimum` | Gemini, OpenAI strict | [pizza-bot 62][s6a], [brave-search 12][s6b], [notion 102][s6c] |
//! | S7: of formats `date-time` only, of texts | OpenAI, Gemini | [git-mcp-server 47][s7] |
//! | S8: no lookaround in patterns | OpenAI | [9router 1556][s8] |
//! | S9: keywords have values of the types that draft 2020-12 gives them | Anthropic | [Dokploy 74][s9] |
//! | K: a key has 1 to 64 of `A–Z a–z 0–9 _ . -` | Anthropic | [n8n 30590][k1], [composio 3500][k2] |
//!
//! Gemini also refuses an object whose `properties` are empty, where OpenAI demands them: its SDKs omit the schema then
//! ([agno 2112](https://github.com/agno-agi/agno/issues/2112)).
//!
//! [n1]: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ToolSpecification.html
//! [n2]: https://cloud.google.com/vertex-ai/generative-ai/docs/reference/nodejs/latest/vertexai/functiondeclaration
//! [n3]: https://github.com/google-gemini/gemini-cli/issues/9535
//! [s1]: https://github.com/langchain-ai/langchain-mcp-adapters/issues/137
//! [s2a]: https://github.com/anthropics/claude-code/issues/5973
//! [s2b]: https://github.com/langchain-ai/langchainjs/issues/9804
//! [s3a]: https://github.com/directus/mcp/issues/8
//! [s3b]: https://github.com/UKGovernmentBEIS/inspect_ai/pull/3097
//! [s4]: https://github.com/sigoden/aichat/pull/1049
//! [s5a]: https://github.com/microsoft/azure-devops-mcp/issues/145
//! [s5b]: https://github.com/decolua/9router/issues/359
//! [s6a]: https://github.com/pizza-bot-app/pizza-bot/issues/62
//! [s6b]: https://github.com/zed-extensions/mcp-server-brave-search/issues/12
//! [s6c]: https://github.com/makenotion/notion-mcp-server/issues/102
//! [s7]: https://github.com/cyanheads/git-mcp-server/issues/47
//! [s8]: https://github.com/decolua/9router/issues/1556
//! [s9]: https://github.com/Dokploy/mcp/issues/74
//! [k1]: https://github.com/n8n-io/n8n/issues/30590
//! [k2]: https://github.com/ComposioHQ/composio/issues/3500

use serde_json::Value as Json;

use super::{NameMap, Tool, ToolName};
use crate::value::Value;

mod keys;
#[cfg(any(feature = "runtime", feature = "vocabulary"))]
mod listing;
mod schema;
#[cfg(feature = "runtime")]
#[cfg(test)]
mod tests;

#[cfg(feature = "runtime")]
pub(crate) use listing::fitted;
#[cfg(any(feature = "runtime", feature = "vocabulary"))]
pub(crate) use listing::{ModelCall, by_owner, model_names};

/// A tool in the form that all model APIs accept: its description, and the schema of its arguments.
///
/// Its name is a matter of all tools together: see [`NameRules::Model`](super::NameRules::Model).
///
/// ```
/// use serde_json::json;
/// use toolbridge::{Tool, Value, tools::ModelTool};
///
/// let schema = json!({"type": "object", "properties": {"$filter": {"type": "string"}}});
/// let tool = Tool::new("search".parse()?, "Searches").schema(schema);
/// let fitted = ModelTool::new(&tool)?;
/// assert_eq!(fitted.schema()["properties"]["_filter"]["type"], "string");
/// let arguments = fitted.arguments(Value::from(json!({"_filter": "red"})));
/// assert_eq!(arguments.to_json(), json!({"$filter": "red"}));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ModelTool {
    description: String,
    schema: Json,
    /// The names of keys; none if each is its own.
    keys: NameMap,
}

/// A tool that no model can call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[error("{tool} is not shown to models: its schema accepts no object, and arguments are always one")]
pub struct UnfitTool {
    /// The tool.
    pub tool: ToolName,
}

impl ModelTool {
    /// Makes a tool fit.
    ///
    /// # Errors
    /// [`UnfitTool`] if its schema accepts no object.
    pub fn new(tool: &Tool) -> Result<Self, UnfitTool> {
        let unfit = || UnfitTool { tool: tool.name().clone() };
        let (mut schema, rules) = schema::fitted(tool.input_schema()).ok_or_else(unfit)?;
        let keys = keys::rename(&mut schema);
        let texts = [tool.description(), tool.title().unwrap_or_default(), tool.name().as_str()];
        let mut description = texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default().to_owned();
        if let Some(rules) = rules {
            description = format!("{description}\n\n{rules}");
        }
        Ok(Self { description, schema, keys })
    }

    /// Returns the description: that of the tool, otherwise its title or name. It also says what the schema cannot.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Returns the JSON Schema of the arguments.
    pub fn schema(&self) -> &Json {
        &self.schema
    }

    /// Returns the tool's arguments for those that a model gave: each key has its own name again.
    pub fn arguments(&self, arguments: Value) -> Value {
        if self.keys == NameMap::default() {
            return arguments;
        }
        let restored = keys::restore(arguments.to_json(), &[&self.schema], &self.keys);
        Value::from_json(&restored.to_string()).unwrap_or(arguments)
    }
}

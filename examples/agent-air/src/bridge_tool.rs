//! A tool of a toolbridge source as a tool of agent-air's runtime.

use std::{collections::HashMap, future::Future, pin::Pin, sync::Arc, time::Duration};

use agent_air_runtime::controller::{Executable, ToolContext as AirContext, ToolType};
use serde_json::Value as Json;
use toolbridge::{
    Tool, ToolContext, ToolResult, ToolSource, Value,
    adapter::agent_air::Document,
    tools::{ModelTool, NameMap, NameRules},
};

/// How long a call may take. The runtime has no limit of its own.
const LIMIT: Duration = Duration::from_secs(60);

/// One tool of a source: of functions, programs, an MCP server, or of the room (`assistant.by_owner()`).
pub struct BridgeTool<S> {
    source: Arc<S>,
    tool: Tool,
    /// The name for the model, which allows no dots.
    name: String,
    /// It in the form that model APIs accept.
    fitted: ModelTool,
    schema: String,
}

impl<S: ToolSource> BridgeTool<S> {
    /// Returns the tools that the source offers now.
    pub fn all(source: S) -> Vec<Self> {
        let source = Arc::new(source);
        let tools = source.list();
        let names = NameMap::new(NameRules::Model, tools.iter().map(|tool| tool.name().as_str()));
        let bridge = |tool: Tool| {
            let name = names.converted(tool.name().as_str())?.to_owned();
            let fitted = ModelTool::new(&tool).ok()?; // one that accepts no object is left out
            let schema = fitted.schema().to_string();
            Some(Self { source: Arc::clone(&source), tool, name, fitted, schema })
        };
        tools.into_iter().filter_map(bridge).collect()
    }
}

impl<S: ToolSource> Executable for BridgeTool<S> {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> &str {
        self.fitted.description()
    }

    fn input_schema(&self) -> &str {
        &self.schema
    }

    fn tool_type(&self) -> ToolType {
        ToolType::Custom
    }

    /// Runs the tool. The runtime drops the future to cancel the call, and toolbridge then stops the tool.
    fn execute(
        &self,
        _context: AirContext,
        input: HashMap<String, Json>,
    ) -> Pin<Box<dyn Future<Output = Result<String, String>> + Send>> {
        let (source, name) = (Arc::clone(&self.source), self.tool.name().clone());
        let arguments = self.fitted.arguments(Value::from(Json::Object(input.into_iter().collect())));
        Box::pin(async move {
            let context = ToolContext::new("agent-air", LIMIT);
            match source.execute(&name, arguments, context).await {
                Ok(value) => Ok(Document::of_result(&ToolResult::of(&value), false).output().to_owned()),
                Err(error) => {
                    Err(Document::of_result(&ToolResult::of_error(&error), true).output().to_owned())
                }
            }
        })
    }
}

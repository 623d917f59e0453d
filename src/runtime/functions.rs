//! Offers functions as tools: a plain `async fn` whose schema comes from its argument type.

mod common_errors;
mod diagnostics;
mod function;
mod handler;

use std::fmt;

use serde::Serialize;

use crate::{
    runtime::{
        schema::ArgumentCheck,
        source::{ToolContext, ToolSource},
    },
    tool::{DEFAULT_TIMEOUT, ErrorCode, Outcome, RegisterError, Tool, ToolError, ToolName},
    value::Value,
};

pub use self::{
    diagnostics::check_tool,
    handler::{Handler, State, WithOptions},
};

use self::function::Function;

/// Offers functions as tools, with shared state.
///
/// A tool is a plain `async fn([ToolContext], [State<S>], [Arguments]) -> Result<T, ToolError>`, each parameter
/// optional. Its JSON Schema is derived from the type of its arguments, which must be a struct with named fields (or
/// another type that serializes to a map). The doc comments of the fields describe them to the model.
///
/// ```
/// use std::sync::Arc;
///
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use serde_json::json;
/// use toolbridge::{ErrorCode, State, ToolError, Tools};
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Find {
///     /// Part of a name
///     name: String,
/// }
///
/// async fn find_contact(State(book): State<Arc<Vec<String>>>, find: Find) -> Result<String, ToolError> {
///     let found = book.iter().find(|name| name.contains(&find.name));
///     Ok(found.cloned().ok_or("nobody of that name")?)
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let tools = Tools::with_state(Arc::new(vec!["Ada Lovelace".to_owned()])).tool(
///     "find_contact",
///     "Full name of a contact",
///     find_contact,
/// );
/// let name: String = tools.call("find_contact", json!({"name": "Ada"})).await.unwrap().decode().unwrap();
/// assert_eq!(name, "Ada Lovelace");
/// let error = tools.call("find_contact", json!({"nam": "Ada"})).await.unwrap_err();
/// assert_eq!(error.code(), ErrorCode::INVALID_PARAMETERS);
/// # });
/// ```
#[derive(Clone)]
#[must_use = "tools do nothing until a client or an assistant offers them"]
pub struct Tools<S = ()> {
    state: S,
    functions: Vec<Function<S>>,
    /// The first error, which is reported when the tools are offered.
    problem: Option<RegisterError>,
}

impl Tools {
    /// Creates an empty set of tools, without state.
    pub fn new() -> Self {
        Self::with_state(())
    }
}

impl<S: Clone + Send + Sync + 'static> Tools<S> {
    /// Creates an empty set of tools. Each call gets a clone of the state through [`State<S>`].
    pub fn with_state(state: S) -> Self {
        Self { state, functions: Vec::new(), problem: None }
    }

    /// Adds a function. [`ToolOptions::on`](crate::ToolOptions::on) sets its options. An invalid or duplicate name, and arguments that are not a
    /// map, are reported at `join`.
    pub fn tool<M>(mut self, name: &str, description: &str, handler: impl Handler<M, S>) -> Self {
        if let Err(problem) = self.add(name, description, handler) {
            self.problem.get_or_insert(problem);
        }
        self
    }

    /// Runs one tool as a remote call would, after checking its arguments. For unit tests of tools.
    ///
    /// The caller is `local`. No deadline is enforced, and a panic is propagated so that a test can see it.
    ///
    /// # Errors
    /// `unknown_tool`, `invalid_parameters`, or the tool's own error.
    ///
    /// # Cancel safety
    /// Dropping the future drops the function at its current await point.
    pub async fn call(&self, name: &str, arguments: impl Serialize) -> Outcome {
        self.check().map_err(|problem| ToolError::new(ErrorCode::EXECUTION_ERROR, problem))?;
        let function = self.function(name)?;
        let arguments = Value::encode(&arguments)
            .map_err(|error| ToolError::new(ErrorCode::INVALID_PARAMETERS, error))?;
        let check = ArgumentCheck::compile(&function.tool)
            .map_err(|problem| ToolError::new(ErrorCode::EXECUTION_ERROR, problem))?;
        let limit = function.tool.tool_options().timeout.unwrap_or(DEFAULT_TIMEOUT);
        function.run(ToolContext::new("local", limit), &self.state, check.check(arguments)?).await
    }

    fn add<M>(
        &mut self,
        name: &str,
        description: &str,
        handler: impl Handler<M, S>,
    ) -> Result<(), RegisterError> {
        let name: ToolName = name.parse()?;
        if name.is_reserved() {
            return Err(RegisterError::Reserved { name });
        }
        if self.functions.iter().any(|function| *function.tool.name() == name) {
            return Err(RegisterError::Duplicate { name });
        }
        self.functions.push(Function::new(name, description, handler)?);
        Ok(())
    }

    fn function(&self, name: &str) -> Result<&Function<S>, ToolError> {
        let unknown = || ToolError::new(ErrorCode::UNKNOWN_TOOL, format!("there is no tool named {name:?}"));
        self.functions.iter().find(|function| function.tool.name().as_str() == name).ok_or_else(unknown)
    }
}

impl Default for Tools {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Clone + Send + Sync + 'static> ToolSource for Tools<S> {
    fn list(&self) -> Vec<Tool> {
        self.functions.iter().map(|function| function.tool.clone()).collect()
    }

    async fn execute(&self, tool: &ToolName, arguments: Value, context: ToolContext) -> Outcome {
        self.function(tool.as_str())?.run(context, &self.state, arguments).await
    }

    fn uses_cancel_grace(&self, tool: &ToolName) -> bool {
        self.function(tool.as_str()).is_ok_and(|function| function.takes_context)
    }

    fn check(&self) -> Result<(), RegisterError> {
        self.problem.clone().map_or(Ok(()), Err)
    }
}

impl<S> fmt::Debug for Tools<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.functions.iter().map(|function| function.tool.name());
        f.debug_set().entries(names).finish()
    }
}

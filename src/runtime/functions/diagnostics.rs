//! Reports which rule a function breaks: one bound per rule, so that the compiler names it.

use std::future::Future;

use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};

use super::handler::State;
use crate::{runtime::source::ToolContext, tool::ToolError};

/// Does nothing at run time; if the function cannot be a tool, the compiler reports the rule that it breaks.
///
/// The compiler's error for [`Tools::tool`](crate::Tools::tool) only states that a function is not a tool. Add a call
/// of `check_tool`, read the error, and remove the call.
///
/// ```
/// use toolbridge::{ToolError, tools::check_tool};
///
/// async fn get_battery() -> Result<f32, ToolError> {
///     Ok(0.8)
/// }
/// check_tool(&get_battery);
/// ```
///
/// Not `async`:
/// ```compile_fail
/// # use toolbridge::{ToolError, tools::check_tool};
/// fn get_battery() -> Result<f32, ToolError> { Ok(0.8) }
/// check_tool(&get_battery);
/// ```
/// Does not return `Result<_, ToolError>`:
/// ```compile_fail
/// # use toolbridge::{ToolError, tools::check_tool};
/// async fn get_battery() -> f32 { 0.8 }
/// check_tool(&get_battery);
/// ```
/// Returns a type that cannot be serialized:
/// ```compile_fail
/// # use toolbridge::{ToolError, tools::check_tool};
/// struct Battery;
/// async fn get_battery() -> Result<Battery, ToolError> { Ok(Battery) }
/// check_tool(&get_battery);
/// ```
/// Arguments without a schema:
/// ```compile_fail
/// # use toolbridge::{ToolError, tools::check_tool};
/// #[derive(serde::Deserialize)] struct Find { name: String }
/// async fn find(find: Find) -> Result<String, ToolError> { Ok(find.name) }
/// check_tool(&find);
/// ```
/// Parameters in another order:
/// ```compile_fail
/// # use toolbridge::{State, ToolContext, ToolError, tools::check_tool};
/// async fn find(_state: State<u32>, _context: ToolContext) -> Result<(), ToolError> { Ok(()) }
/// check_tool(&find);
/// ```
/// A future that is not `Send`:
/// ```compile_fail
/// # use toolbridge::{ToolError, tools::check_tool};
/// async fn wait() -> Result<(), ToolError> {
///     let shared = std::rc::Rc::new(1);
///     std::future::ready(()).await;
///     drop(shared);
///     Ok(())
/// }
/// check_tool(&wait);
/// ```
pub fn check_tool<P, F>(_function: &F)
where
    F: Function<P>,
    P: Parameters,
    F::Returned: Async,
    <F::Returned as Async>::Answer: Answer,
    F::Returned: Send,
    F: Clone + Send + Sync + 'static,
{
}

#[diagnostic::on_unimplemented(
    message = "this is not a function with at most three parameters",
    note = "a tool takes `ToolContext`, `State<S>` and its arguments, each optional; several arguments are \
            fields of one struct"
)]
pub trait Function<P> {
    type Returned;
}

#[diagnostic::on_unimplemented(
    message = "these are not the parameters of a tool, or not in the required order",
    note = "the order is, each optional: `ToolContext`, `State<S>`, the arguments"
)]
pub trait Parameters {}

#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the only parameter of a tool",
    label = "neither `ToolContext` nor `State<S>`, so these are the arguments",
    note = "arguments derive `serde::Deserialize` and `schemars::JsonSchema`, and borrow nothing"
)]
pub trait Only {}

#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot follow a `ToolContext`",
    label = "not `State<S>`, so these are the arguments",
    note = "arguments derive `serde::Deserialize` and `schemars::JsonSchema`, and borrow nothing"
)]
pub trait AfterContext {}

#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the arguments of a tool",
    label = "what follows a `State<S>` are the arguments; a `ToolContext` comes first",
    note = "arguments derive `serde::Deserialize` and `schemars::JsonSchema`, and borrow nothing"
)]
pub trait Arguments {}

#[diagnostic::on_unimplemented(
    message = "this function is not async: it returns `{Self}`",
    note = "write `async fn`, or return a future"
)]
pub trait Async {
    type Answer;
}

#[diagnostic::on_unimplemented(
    message = "a tool returns `Result<T, ToolError>` where `T` is `serde::Serialize`, not `{Self}`",
    note = "`?` converts common errors; `.map_err(ToolError::internal)?` converts any other"
)]
pub trait Answer {}

impl<F: Fn() -> R, R> Function<()> for F {
    type Returned = R;
}

impl<F: Fn(A) -> R, R, A> Function<(A,)> for F {
    type Returned = R;
}

impl<F: Fn(A, B) -> R, R, A, B> Function<(A, B)> for F {
    type Returned = R;
}

impl<F: Fn(A, B, C) -> R, R, A, B, C> Function<(A, B, C)> for F {
    type Returned = R;
}

impl Parameters for () {}
impl<A: Only> Parameters for (A,) {}
impl<A: AfterContext> Parameters for (ToolContext, A) {}
impl<S, A: Arguments> Parameters for (State<S>, A) {}
impl<S, A: Arguments> Parameters for (ToolContext, State<S>, A) {}

impl Only for ToolContext {}
impl<S> Only for State<S> {}
#[diagnostic::do_not_recommend]
impl<A: DeserializeOwned + JsonSchema + Send + 'static> Only for A {}

impl<S> AfterContext for State<S> {}
#[diagnostic::do_not_recommend]
impl<A: DeserializeOwned + JsonSchema + Send + 'static> AfterContext for A {}

#[diagnostic::do_not_recommend]
impl<A: DeserializeOwned + JsonSchema + Send + 'static> Arguments for A {}

#[diagnostic::do_not_recommend]
impl<F: Future> Async for F {
    type Answer = F::Output;
}

impl<T: Serialize> Answer for Result<T, ToolError> {}

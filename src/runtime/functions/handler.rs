//! Defines the signatures that a function can have to be a tool.

use std::future::Future;

use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};

use self::sealed::Seal;
use super::function::{Built, arguments, result};
use crate::{
    runtime::source::ToolContext,
    tool::{ToolError, ToolOptions},
};

/// The state given to [`Tools::with_state`](crate::Tools::with_state), as a tool's parameter.
///
/// ```
/// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
///
/// use toolbridge::{State, ToolError, Tools};
///
/// async fn count(State(calls): State<Arc<AtomicU64>>) -> Result<u64, ToolError> {
///     Ok(calls.fetch_add(1, Ordering::Relaxed) + 1)
/// }
/// let tools = Tools::with_state(Arc::new(AtomicU64::new(0))).tool("count", "Counts its calls", count);
/// # let _ = tools;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct State<S>(pub S);

/// An `async fn` that can be a tool.
///
/// Its parameters are [`ToolContext`], [`State<S>`] and its arguments, each optional, in this order. The arguments
/// derive `serde::Deserialize` and `schemars::JsonSchema`. The function returns `Result<T, ToolError>` where `T` is
/// `serde::Serialize`. Closures that return such a future are accepted too, and functions with options
/// ([`ToolOptions::on`]). `M` encodes which of the eight signatures it has, and is inferred. The trait is sealed.
///
/// If the compiler rejects a function, [`check_tool`](crate::tools::check_tool) finds the reason.
#[diagnostic::on_unimplemented(
    message = "this function cannot be a tool",
    label = "not a tool",
    note = "a tool is an `async fn` whose parameters are `ToolContext`, `State<S>` and its arguments, each \
            optional, in this order",
    note = "`S` is the type given to `Tools::with_state`, and `()` where none was given",
    note = "the arguments are one struct that derives `serde::Deserialize` and `schemars::JsonSchema`",
    note = "it returns `Result<T, ToolError>`, where `T` is `serde::Serialize`",
    note = "its future is `Send`: nothing like `Rc` or a lock's guard lives across an await",
    note = "to see which rule is broken, write `toolbridge::tools::check_tool(&the_function)` anywhere"
)]
pub trait Handler<M, S>: Clone + Send + Sync + 'static {
    #[doc(hidden)]
    fn build(self, seal: Seal) -> Built<S>;
}

/// A function with options: see [`ToolOptions::on`].
#[derive(Clone, Debug)]
pub struct WithOptions<H> {
    handler: H,
    options: ToolOptions,
}

impl ToolOptions {
    /// Sets these options for a function that becomes a tool.
    ///
    /// ```
    /// use toolbridge::{Client, ConsentRequest, ToolError, ToolOptions};
    ///
    /// async fn erase_album() -> Result<(), ToolError> {
    ///     Ok(())
    /// }
    /// let client = Client::builder()
    ///     .tool("erase_album", "Delete an album", ToolOptions::destructive().on(erase_album))
    ///     .consent(|_: ConsentRequest| async { true });
    /// # let _ = client;
    /// ```
    pub fn on<H>(self, handler: H) -> WithOptions<H> {
        WithOptions { handler, options: self }
    }
}

#[doc(hidden)]
#[derive(Debug)]
pub struct Optioned<M>(std::marker::PhantomData<fn(M)>);

impl<M, S, H: Handler<M, S>> Handler<Optioned<M>, S> for WithOptions<H> {
    fn build(self, seal: Seal) -> Built<S> {
        Built { options: self.options, ..self.handler.build(seal) }
    }
}

pub(super) mod sealed {
    /// A private type, so that only this crate can implement [`Handler`](super::Handler).
    #[derive(Debug)]
    pub struct Seal;
}

/// The eight signatures: which parameters there are, and what each is made of.
macro_rules! forms {
    ($($marker:ident ($($param:ident : $kind:ident),*) $($generic:ident)?;)*) => {$(
        #[doc(hidden)]
        #[derive(Debug)]
        pub struct $marker $(<$generic>(std::marker::PhantomData<fn($generic)>))?;

        impl<F, Fut, T, S $(, $generic)?> Handler<$marker $(<$generic>)?, S> for F
        where
            F: Fn($(forms!(@type $kind)),*) -> Fut + Clone + Send + Sync + 'static,
            Fut: Future<Output = Result<T, ToolError>> + Send + 'static,
            T: Serialize,
            S: Clone + Send + Sync + 'static,
            $($generic: DeserializeOwned + JsonSchema + Send + 'static,)?
        {
            fn build(self, _seal: Seal) -> Built<S> {
                Built {
                    takes_context: forms!(@has_context $($kind)*),
                    schema: forms!(@schema $($generic)?),
                    options: ToolOptions::default(),
                    run: std::sync::Arc::new(move |_context: ToolContext, _state: &S, _body| {
                        $(let $param = forms!(@make $kind _context _state _body);)*
                        let running = self($($param),*);
                        Box::pin(async move { result(running.await) })
                    }),
                }
            }
        }
    )*};
    (@type context) => { ToolContext };
    (@type state) => { State<S> };
    (@type arguments) => { A };
    (@make context $context:ident $state:ident $body:ident) => { $context };
    (@make state $context:ident $state:ident $body:ident) => { State($state.clone()) };
    (@make arguments $context:ident $state:ident $body:ident) => {
        match arguments::<A>(&$body) {
            Ok(it) => it,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        }
    };
    (@has_context context $($rest:ident)*) => { true };
    (@has_context $($rest:ident)*) => { false };
    (@schema) => { None };
    (@schema $generic:ident) => { Some(super::function::schema_of::<$generic>) };
}

forms! {
    Bare();
    WithContext(context: context);
    WithState(state: state);
    WithArguments(arguments_: arguments) A;
    WithContextState(context: context, state: state);
    WithContextArguments(context: context, arguments_: arguments) A;
    WithStateArguments(state: state, arguments_: arguments) A;
    WithAll(context: context, state: state, arguments_: arguments) A;
}

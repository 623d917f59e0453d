//! The permission for a whole batch: all of its calls are made, or none.

use std::{
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use crate::{CallBuilder, Identity, PermissionPrompt, PromptAnswer, Value, chat::Caller};

/// The tool that asks a person for a permission.
const TOOL: &str = "bridge.permission";

/// How long the person may take, by default.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// Who decides. The error is the text for the model.
pub(super) enum Permission {
    /// The person at this client, otherwise at the only one that answers prompts.
    Person(Option<Identity>),
    /// A function of the author's.
    Function(Decide),
}

pub(super) type Decide = Box<dyn FnOnce(PermissionPrompt) -> Deciding + Send>;
pub(super) type Deciding = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

impl Permission {
    /// Starts asking. The returned future resolves to the decision, which takes at most `limit`. A panic is a denial.
    pub(super) fn ask(self, caller: &impl Caller, prompt: PermissionPrompt, limit: Duration) -> Asking {
        let deciding = match self {
            Self::Person(client) => {
                let call = caller.call(TOOL, Value::encode(&prompt).unwrap_or_default()).timeout(limit);
                let call = match client {
                    Some(client) => call.to(client),
                    None => call,
                };
                Ok(Box::pin(of_person(call, prompt)) as Deciding)
            }
            Self::Function(decide) => {
                let deciding = catch_unwind(AssertUnwindSafe(|| decide(prompt))).map_err(|_| ());
                deciding.map(|deciding| Box::pin(within(limit, deciding)) as Deciding)
            }
        };
        Asking(deciding.ok())
    }
}

impl fmt::Debug for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Person(client) => f.debug_tuple("Person").field(client).finish(),
            Self::Function(_) => f.write_str("Function"),
        }
    }
}

async fn of_person(call: CallBuilder, prompt: PermissionPrompt) -> Result<(), String> {
    let answer = call.await.map_err(|error| format!("nobody could be asked for permission: {error}"))?;
    let answer: PromptAnswer =
        answer.decode().map_err(|_| "the answer about permission was not understood".to_owned())?;
    if prompt.chosen(&answer).is_some_and(|option| option.allows()) {
        return Ok(());
    }
    Err(match answer.text {
        Some(text) => format!("permission denied by the person, who said: {text}"),
        None => "permission denied by the person".to_owned(),
    })
}

async fn within(limit: Duration, deciding: Deciding) -> Result<(), String> {
    match tokio::time::timeout(limit, deciding).await {
        Ok(decision) => decision,
        Err(_) => Err(format!("nobody decided about permission within {} ms", limit.as_millis())),
    }
}

/// A permission that is being decided: `None` once the function has panicked.
pub(super) struct Asking(Option<Deciding>);

impl Asking {
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), String>> {
        let failed = || Poll::Ready(Err("the decision about permission failed".to_owned()));
        let Some(deciding) = &mut self.0 else { return failed() };
        match catch_unwind(AssertUnwindSafe(|| deciding.as_mut().poll(context))) {
            Ok(polled) => polled,
            Err(_) => failed(),
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        // Dropping the author's future may panic, too.
        let deciding = self.0.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(deciding)));
    }
}

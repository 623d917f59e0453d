//! Asks for permission for a whole batch: all of its calls are made, or none.

use std::{
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    CallBuilder, CallError, Identity, Value,
    chat::Caller,
    prompt::{PermissionPrompt, PromptAnswer},
};

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

/// What was decided.
pub(super) enum Decision {
    Allowed,
    /// The text is for the model.
    Denied(String),
    /// The user interrupted before anybody decided.
    Interrupted,
}

impl Permission {
    /// Starts asking. The returned future resolves to the decision, which takes at most `limit`. A panic is a denial.
    pub(super) fn ask(self, caller: &impl Caller, prompt: PermissionPrompt, limit: Duration) -> Asking {
        let deciding: Pin<Box<dyn Future<Output = Decision> + Send>> = match self {
            Self::Person(client) => match Value::encode(&prompt) {
                Ok(arguments) => {
                    let call = caller.call(TOOL, arguments).timeout(limit);
                    let call = match client {
                        Some(client) => call.to(client),
                        None => call,
                    };
                    Box::pin(of_person(call, prompt))
                }
                Err(error) => Box::pin(std::future::ready(nobody(error))),
            },
            Self::Function(decide) => Box::pin(of_function(decide, prompt, limit)),
        };
        Asking { deciding: Some(deciding), interrupted: Box::pin(caller.interrupted()) }
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

async fn of_person(call: CallBuilder, prompt: PermissionPrompt) -> Decision {
    let answer = match call.await {
        Ok(answer) => answer,
        Err(CallError::Cancelled | CallError::Unawaited | CallError::Detached | CallError::TurnOver) => {
            return Decision::Interrupted;
        }
        Err(error) => return nobody(error),
    };
    let Ok(answer) = answer.decode::<PromptAnswer>() else {
        return Decision::Denied("the answer about permission was not understood".to_owned());
    };
    if prompt.chosen(&answer).is_some_and(|option| option.allows()) {
        return Decision::Allowed;
    }
    Decision::Denied(match answer.text {
        Some(text) => format!("permission denied by the person, who said: {text}"),
        None => "permission denied by the person".to_owned(),
    })
}

fn nobody(why: impl fmt::Display) -> Decision {
    Decision::Denied(format!("nobody could be asked for permission: {why}"))
}

async fn of_function(decide: Decide, prompt: PermissionPrompt, limit: Duration) -> Decision {
    match tokio::time::timeout(limit, decide(prompt)).await {
        Ok(Ok(())) => Decision::Allowed,
        Ok(Err(why)) => Decision::Denied(why),
        Err(_) => {
            Decision::Denied(format!("nobody decided about permission within {} ms", limit.as_millis()))
        }
    }
}

/// A permission that is being decided.
pub(super) struct Asking {
    /// Taken when it is dropped.
    deciding: Option<Pin<Box<dyn Future<Output = Decision> + Send>>>,
    interrupted: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Asking {
    /// Returns the decision once.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Decision> {
        if self.interrupted.as_mut().poll(context).is_ready() {
            return Poll::Ready(Decision::Interrupted);
        }
        let failed = || Poll::Ready(Decision::Denied("the decision about permission failed".to_owned()));
        let Some(deciding) = &mut self.deciding else { return failed() };
        catch_unwind(AssertUnwindSafe(|| deciding.as_mut().poll(context))).unwrap_or_else(|_| failed())
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        // Dropping the author's future may panic, too.
        let deciding = self.deciding.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(deciding)));
    }
}

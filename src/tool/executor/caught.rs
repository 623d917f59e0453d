//! A panic of a tool: caught, and its text kept from logs and from whoever called.

use std::{
    any::Any,
    cell::{Cell, RefCell},
    future::Future,
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    sync::Once,
    task::{Context, Poll},
    thread,
};

use crate::tool::{ErrorCode, Outcome, ToolError};

/// The longest text of a panic that is kept, in characters.
const MAX_TEXT: usize = 1_000;

/// A call's future whose panic is an `execution_error`.
pub(super) struct Caught<'a> {
    running: Option<Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>>,
}

impl<'a> Caught<'a> {
    pub(super) fn new(future: impl Future<Output = Outcome> + Send + 'a) -> Self {
        Self { running: Some(Box::pin(future)) }
    }

    /// Drops what is left; that can panic too.
    fn end(&mut self) {
        if let Some(running) = self.running.take()
            && let Err(panic) = quietly(|| drop(running))
        {
            tracing::error!(at = %panic.place, "a tool panicked when it was dropped");
        }
    }
}

impl Future for Caught<'_> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let Some(running) = &mut self.running else { return Poll::Pending };
        let outcome = match quietly(|| running.as_mut().poll(cx)) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(outcome)) => outcome,
            Err(panic) => {
                tracing::error!(at = %panic.place, "a tool panicked");
                Err(ToolError::new(ErrorCode::EXECUTION_ERROR, "the tool crashed")
                    .with_source(panic.reason()))
            }
        };
        self.end();
        Poll::Ready(outcome)
    }
}

impl Drop for Caught<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

thread_local! {
    /// Whether this thread runs a tool just now.
    static QUIET: Cell<bool> = const { Cell::new(false) };
    /// Where the tool panicked.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// What a tool said as it panicked, which may hold what it was given; and where.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Panic {
    text: String,
    /// File, line and column.
    pub(super) place: String,
}

impl Panic {
    fn reason(self) -> String {
        format!("it panicked at {}: {}", self.place, self.text)
    }
}

/// Runs it and answers with the panic, if it panics.
///
/// A panic is printed by the process' hook before anybody can catch it, and the text may hold what the tool
/// was given. So a hook of ours stands before the one that is there, and keeps silent for tools only.
pub(super) fn quietly<T>(run: impl FnOnce() -> T) -> Result<T, Panic> {
    static HOOK: Once = Once::new();
    // While a thread unwinds its hook cannot be set.
    if !thread::panicking() {
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                if QUIET.get() {
                    let place = info.location().map(ToString::to_string);
                    // A thread that ends has no such place any more; a hook must not panic over it.
                    let _ = PLACE.try_with(|slot| slot.replace(place));
                } else {
                    before(info);
                }
            }));
        });
    }
    let outer = QUIET.replace(true);
    let ran = panic::catch_unwind(AssertUnwindSafe(run));
    QUIET.set(outer);
    ran.map_err(|payload| {
        let place = PLACE.try_with(RefCell::take).ok().flatten();
        let text = text_of(&*payload).chars().take(MAX_TEXT).collect();
        Panic { text, place: place.unwrap_or_else(|| "an unknown place".to_owned()) }
    })
}

fn text_of(payload: &(dyn Any + Send)) -> &str {
    let owned = payload.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("not a text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_its_text_and_place() {
        assert_eq!(quietly(|| 1), Ok(1));
        let panic = quietly(|| panic!("number {}", 7)).unwrap_err();
        assert!(panic.place.starts_with("src/tool/executor/caught.rs:"), "{panic:?}");
        assert!(panic.reason().ends_with(": number 7"));
        let panic = quietly(|| panic::resume_unwind(Box::new(7))).unwrap_err();
        assert_eq!(panic.reason(), "it panicked at an unknown place: not a text");
        assert!(!QUIET.get());
    }

    #[tokio::test]
    async fn a_panic_at_the_very_end_is_caught_too() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        let bomb = Bomb;
        let forever = Caught::new(async move {
            let _bomb = bomb;
            std::future::pending().await
        });
        drop(forever);
    }
}

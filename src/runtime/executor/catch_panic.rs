//! Catches panics of tools, and keeps their texts out of logs and results.

use std::{
    any::Any,
    cell::{Cell, RefCell},
    future::Future,
    io::{self, Write as _},
    panic::{self, AssertUnwindSafe, PanicHookInfo},
    pin::Pin,
    sync::Once,
    task::{Context, Poll},
    thread,
};

use crate::tool::{ErrorCode, Outcome, ToolError};

/// The longest panic text that is kept, in characters.
const MAX_TEXT: usize = 1_000;

/// The place of a panic that has none.
const UNKNOWN_PLACE: &str = "an unknown location";

/// A hook that the standard library calls for each panic.
type Hook = dyn Fn(&PanicHookInfo<'_>) + Send + Sync;

/// A call's future. Its panic becomes an `execution_error`.
pub(super) struct Caught<'a> {
    running: Option<Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>>,
}

impl<'a> Caught<'a> {
    pub(super) fn new(future: impl Future<Output = Outcome> + Send + 'a) -> Self {
        Self { running: Some(Box::pin(future)) }
    }

    /// Drops the rest of the future, which can panic too.
    fn end(&mut self) {
        if let Some(running) = self.running.take()
            && let Err(panic) = catch_panic(|| drop(running))
        {
            tracing::error!(at = %panic.place, "a tool panicked when it was dropped");
        }
    }
}

impl Future for Caught<'_> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let Some(running) = &mut self.running else { return Poll::Pending };
        let outcome = match catch_panic(|| running.as_mut().poll(cx)) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(outcome)) => outcome,
            Err(panic) => {
                tracing::error!(at = %panic.place, "a tool panicked");
                Err(ToolError::new(ErrorCode::EXECUTION_ERROR, ToolError::PANIC_MESSAGE)
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
    /// Whether this thread is running a tool.
    static QUIET: Cell<bool> = const { Cell::new(false) };
    /// Where the tool panicked.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The text of a panic, which may contain arguments, and its location.
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

/// Runs the function and returns the panic, if it panics.
///
/// The default panic hook prints a panic before anything can catch it, and the text may contain arguments. Therefore this
/// installs a hook in front of the existing one. For a tool, it prints where the tool panicked, and not the text. A hook
/// that the program has installed itself is called instead, and decides what it shows.
pub(super) fn catch_panic<T>(run: impl FnOnce() -> T) -> Result<T, Panic> {
    static HOOK: Once = Once::new();
    // A hook cannot be set while its thread unwinds.
    if !thread::panicking() {
        HOOK.call_once(|| {
            let before = panic::take_hook();
            let is_default = is_default_hook(&*before);
            panic::set_hook(Box::new(move |info| {
                let is_tool = QUIET.get();
                if is_tool {
                    let place = info.location().map(ToString::to_string);
                    let at = place.as_deref().unwrap_or(UNKNOWN_PLACE);
                    if is_default {
                        // Nothing can be done if the line cannot be written.
                        let _ = writeln!(io::stderr(), "toolbridge: a tool panicked at {at}");
                    }
                    // The thread-local value of an ending thread is gone; the hook must not panic then.
                    let _ = PLACE.try_with(|slot| slot.replace(place));
                }
                if !is_tool || !is_default {
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
        Panic { text, place: place.unwrap_or_else(|| UNKNOWN_PLACE.to_owned()) }
    })
}

/// Returns whether this is the standard library's hook. It must have been taken just now: a second one that is taken is
/// then the default, and the two are the same function.
fn is_default_hook(hook: &Hook) -> bool {
    let default = panic::take_hook();
    std::ptr::eq(hook, &*default)
}

fn text_of(payload: &(dyn Any + Send)) -> &str {
    let owned = payload.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("not a text")
}

#[cfg(test)]
mod tests {
    use std::{env, process::Command};

    use super::*;

    #[test]
    fn panic_has_its_text_and_location() {
        assert_eq!(catch_panic(|| 1), Ok(1));
        let panic = catch_panic(|| panic!("number {}", 7)).unwrap_err();
        assert!(panic.place.starts_with("src/runtime/executor/catch_panic.rs:"), "{panic:?}");
        assert!(panic.reason().ends_with(": number 7"));
        let panic = catch_panic(|| panic::resume_unwind(Box::new(7))).unwrap_err();
        assert_eq!(panic.reason(), "it panicked at an unknown location: not a text");
        assert!(!QUIET.get());
    }

    /// Runs this test alone in another process, with this in its environment. Returns what it writes to standard error.
    fn output_of(test: &str, mode: &str) -> String {
        let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
        let mut command = Command::new(env::current_exe().unwrap());
        command.args([name.as_str(), "--exact", "--nocapture"]).env(MODE, mode);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    const MODE: &str = "TOOLBRIDGE_TEST_PANIC";

    #[test]
    fn panicking_tool_leaves_one_line_with_its_place_on_stderr() {
        match env::var(MODE).as_deref() {
            Ok("default") => assert!(catch_panic(|| panic!("a planted secret")).is_err()),
            Ok("own") => {
                panic::set_hook(Box::new(|info| eprintln!("own hook: {:?}", info.payload_as_str())));
                assert!(catch_panic(|| panic!("for the own hook")).is_err());
            }
            _ => {
                let this = "panicking_tool_leaves_one_line_with_its_place_on_stderr";
                let lines = output_of(this, "default");
                let line = lines
                    .trim_end()
                    .strip_prefix("toolbridge: a tool panicked at src/runtime/executor/catch_panic.rs:");
                assert!(line.is_some_and(|rest| !rest.contains('\n')), "{lines:?}");
                assert_eq!(output_of(this, "own"), "own hook: Some(\"for the own hook\")\n");
            }
        }
    }

    #[tokio::test]
    async fn panic_in_a_destructor_is_caught() {
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

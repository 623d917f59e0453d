//! A session that a panic closes, for wrappers whose languages go on after one.

use std::{
    any::Any,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// A session that is dropped if a function of it panics, since its state may be broken then. Each later use fails, too.
#[derive(Debug)]
pub struct Guarded<S> {
    state: Result<S, Panicked>,
}

/// The core has panicked, or did so before. The text begins with `panic: `.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panicked(String);

impl<S> Guarded<S> {
    /// Creates a session by a function that may panic.
    ///
    /// # Errors
    /// The function panicked.
    pub fn create<E>(create: impl FnOnce() -> Result<S, E>) -> Result<Result<Self, E>, Panicked> {
        let created = catch_unwind(AssertUnwindSafe(create)).map_err(|payload| Panicked::new(&*payload))?;
        Ok(created.map(|session| Self { state: Ok(session) }))
    }

    /// Runs a function of the session.
    ///
    /// # Errors
    /// The function panicked, or one did before.
    pub fn run<T>(&mut self, run: impl FnOnce(&mut S) -> T) -> Result<T, Panicked> {
        let session = self.state.as_mut().map_err(|panicked| panicked.clone())?;
        // The session is not used again if it panics.
        let ran = catch_unwind(AssertUnwindSafe(|| run(session)));
        ran.map_err(|payload| {
            let panicked = Panicked::new(&*payload);
            let broken = std::mem::replace(&mut self.state, Err(panicked.clone()));
            // Its destructors may meet the broken state, and panic again.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(broken)));
            panicked
        })
    }
}

impl Panicked {
    /// Reports a panic that was caught, by what it carries.
    pub fn new(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Self(format!("panic: {}", text.unwrap_or("without a text")))
    }
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Panicked {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails to be dropped if it is broken.
    struct Fragile {
        is_broken: bool,
    }

    impl Drop for Fragile {
        fn drop(&mut self) {
            assert!(!self.is_broken, "it is broken");
        }
    }

    #[test]
    fn session_that_panicked_is_dropped_and_each_later_use_fails() -> Result<(), Panicked> {
        let Ok(mut guarded) = Guarded::create(|| Ok::<_, ()>(Fragile { is_broken: false }))? else {
            return Err(Panicked("not created".into()));
        };
        assert!(!guarded.run(|fragile| fragile.is_broken)?);
        let panicked = guarded.run(|fragile| {
            fragile.is_broken = true;
            panic!("this is {}", "wrong")
        });
        assert_eq!(panicked, Err::<(), _>(Panicked("panic: this is wrong".into())));
        assert_eq!(guarded.run(|_| ()), Err(Panicked("panic: this is wrong".into())));
        Ok(())
    }

    #[test]
    fn panic_while_a_session_is_created_is_an_error() {
        let created = Guarded::<()>::create(|| -> Result<(), ()> { panic!("at once") });
        assert_eq!(created.err(), Some(Panicked("panic: at once".into())));
    }
}

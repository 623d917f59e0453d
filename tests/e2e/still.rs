//! Detects whether this machine was suspended while a test ran.
//!
//! These tests use real connections, which a participant rightly considers lost after 1.5 to 2.8 s of silence: a
//! failure on a machine that was suspended meanwhile proves nothing, and the test runs again. A failure on any other
//! machine counts.

use std::{
    sync::{LazyLock, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// The check interval.
const LOOK: Duration = Duration::from_millis(50);
/// A check that is this late shows a suspension.
const LATE: Duration = Duration::from_millis(200);
/// How often a suspended test is run again at most.
pub(crate) const ATTEMPTS: usize = 2;

/// When the machine was suspended, and for how long.
static STILL: LazyLock<Mutex<Vec<(Instant, Duration)>>> = LazyLock::new(|| {
    thread::spawn(|| {
        loop {
            let began = Instant::now();
            thread::sleep(LOOK);
            let late = began.elapsed().saturating_sub(LOOK);
            if late >= LATE {
                STILL.lock().unwrap_or_else(PoisonError::into_inner).push((began, late));
            }
        }
    });
    Mutex::default()
});

/// A watched interval.
pub(crate) struct Watch(Instant);

impl Watch {
    pub(crate) fn begin() -> Self {
        LazyLock::force(&STILL);
        Self(Instant::now())
    }

    /// Returns the longest suspension since then, if there was one.
    pub(crate) fn suspension(&self) -> Option<Duration> {
        let still = STILL.lock().unwrap_or_else(PoisonError::into_inner);
        still.iter().filter(|(began, _)| *began + LOOK >= self.0).map(|(_, late)| *late).max()
    }
}

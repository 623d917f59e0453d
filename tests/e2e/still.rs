//! Whether this machine stood still while a test ran.
//!
//! These tests are about real connections, which a participant rightly takes for lost after 1.5 to 2.8 s of silence: what
//! fails on a machine that was held up meanwhile has shown nothing, and is run again. What fails on one that was not has
//! failed.

use std::{
    sync::{LazyLock, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// How often it is looked after.
const LOOK: Duration = Duration::from_millis(50);
/// Who comes this much too late was held up.
const LATE: Duration = Duration::from_millis(200);
/// How often a test that was held up is run again at most.
pub(crate) const ATTEMPTS: usize = 2;

/// When the machine stood still, and for how long.
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

/// A stretch of time that is watched.
pub(crate) struct Watch(Instant);

impl Watch {
    pub(crate) fn begin() -> Self {
        LazyLock::force(&STILL);
        Self(Instant::now())
    }

    /// For how long at most the machine has stood still since then, if it has.
    pub(crate) fn stood_still(&self) -> Option<Duration> {
        let still = STILL.lock().unwrap_or_else(PoisonError::into_inner);
        still.iter().filter(|(began, _)| *began + LOOK >= self.0).map(|(_, late)| *late).max()
    }
}

//! The figures of the benchmark, and the rows that they are printed in.

use std::ops::Range;

use toolbridge::Config;

use super::{Call, Log, PERIOD, WATCH};

pub(super) const HEAD: &str = "cut | seconds | | pairs x times | calls work again after p50 / p95 / max (ms) | never again | longest call (s) | calls | failed | of these lost | before the grace period was over";

pub(super) const LOSS_HEAD: &str = "loss | | calls | each took p50 / p99 / max (ms) | failed";

/// How long calls took that began while packets were lost.
pub(super) fn lossy(log: &Log, loss: f64, name: &str, when: Range<f64>) -> String {
    let calls: Vec<_> = log.calls.iter().filter(|call| when.contains(&call.began)).collect();
    let well = calls.iter().filter(|call| call.error.is_none());
    let mut took: Vec<_> = well.map(|call| (call.ended - call.began) * 1e3).collect();
    took.sort_unstable_by(f64::total_cmp);
    let failed = calls.len() - took.len();
    let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| at(&took, share));
    format!("{} % | {name} | {} | {p50:.0} / {p99:.0} / {max:.0} | {failed}", loss * 100.0, calls.len())
}

/// Returns the value below which this share lies.
fn at(sorted: &[f64], share: f64) -> f64 {
    let index = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(index.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

/// A cut, with the system's time in seconds.
pub(super) struct Cut {
    pub(super) began: f64,
    pub(super) back: f64,
    /// Whether it makes the client unreachable; otherwise it does not affect calls.
    pub(super) is_away: bool,
}

impl Cut {
    /// Returns whether a call that ended then may have been lost: its owner was away for longer than the grace
    /// period, and has not been back for long.
    fn excuses(&self, ended: f64) -> bool {
        let grace = Config::default().times.grace.as_secs_f64();
        // It counts from the last packet, which may be one call period before the cut.
        let over = self.began + grace - PERIOD.as_secs_f64();
        self.is_away && self.back >= over && (over..self.back + WATCH.as_secs_f64()).contains(&ended)
    }
}

/// Returns how many calls were lost although their owner was not away for as long as the grace period.
pub(super) fn lost_early<'a>(calls: impl IntoIterator<Item = &'a Call>, cuts: &[Cut]) -> usize {
    let lost = |call: &&Call| matches!(call.error.as_deref(), Some("lost" | "unknown tool"));
    let early = |call: &&Call| !cuts.iter().any(|cut| cut.excuses(call.ended));
    calls.into_iter().filter(lost).filter(early).count()
}

/// One row: the same cut, several times, for all pairs of one kind.
#[derive(Default)]
pub(super) struct Row {
    again: Vec<f64>,
    never: usize,
    longest: f64,
    calls: usize,
    failed: usize,
    lost: usize,
    early: usize,
}

impl Row {
    /// Evaluates what happened since the last of these cuts began.
    pub(super) fn take(&mut self, log: &Log, pairs: usize, cuts: &[Cut]) {
        let Some(&Cut { began, back, .. }) = cuts.last() else { return };
        for pair in 0..pairs {
            let calls: Vec<_> =
                log.calls.iter().filter(|call| call.pair == pair && call.ended >= began).collect();
            let first = calls
                .iter()
                .filter(|call| call.error.is_none() && call.ended > back)
                .map(|call| call.ended)
                .min_by(f64::total_cmp);
            match first {
                Some(at) => self.again.push((at - back) * 1e3),
                None => self.never += 1,
            }
            self.longest = calls.iter().map(|call| call.ended - call.began).fold(self.longest, f64::max);
            self.calls += calls.len();
            self.early += lost_early(calls.iter().copied(), cuts);
            let failed = calls.iter().filter_map(|call| call.error.as_deref());
            for error in failed {
                self.failed += 1;
                self.lost += usize::from(error == "lost");
            }
        }
    }

    pub(super) fn show(&mut self, class: &str, length: f64, name: &str) -> String {
        self.again.sort_unstable_by(f64::total_cmp);
        format!(
            "{class} | {length} | {name} | {} | {:.0} / {:.0} / {:.0} | {} | {:.1} | {} | {} | {} | {}",
            self.again.len() + self.never,
            at(&self.again, 0.5),
            at(&self.again, 0.95),
            at(&self.again, 1.0),
            self.never,
            self.longest,
            self.calls,
            self.failed,
            self.lost,
            self.early,
        )
    }
}

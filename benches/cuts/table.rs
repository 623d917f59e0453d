//! What is counted, and how it is shown.

use super::Log;

pub(super) const HEAD: &str = "cut | seconds | | pairs x times | calls work again after p50 / p95 / max (ms) | not at all | longest call (s) | calls | failed | of these lost";

/// One row: the same cut, several times, for all pairs of one kind.
#[derive(Default)]
pub(super) struct Row {
    again: Vec<f64>,
    never: usize,
    longest: f64,
    calls: usize,
    failed: usize,
    lost: usize,
}

impl Row {
    /// Takes what happened since a cut began, which ended at `back`.
    pub(super) fn take(&mut self, log: &Log, pairs: usize, began: f64, back: f64) {
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
            let failed = calls.iter().filter_map(|call| call.error.as_deref());
            for error in failed {
                self.failed += 1;
                self.lost += usize::from(error == "lost");
            }
        }
    }

    pub(super) fn show(&mut self, class: &str, length: f64, name: &str) -> String {
        self.again.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| {
            let index = (self.again.len() as f64 * share).ceil() as usize;
            self.again.get(index.clamp(1, self.again.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
        };
        format!(
            "{class} | {length} | {name} | {} | {:.0} / {:.0} / {:.0} | {} | {:.1} | {} | {} | {}",
            self.again.len() + self.never,
            at(0.5),
            at(0.95),
            at(1.0),
            self.never,
            self.longest,
            self.calls,
            self.failed,
            self.lost,
        )
    }
}

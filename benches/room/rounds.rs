//! Rows of calls that take turns, so that a change of the machine's load meets all of them.

use std::{collections::BTreeMap, time::Duration};

use super::{report, share, short::scaled};

/// How often each row is measured.
const ROUNDS: usize = 40;

/// The calls of a row in each round.
const CALLS: usize = 50;

/// The calls of each row before the first round.
const WARM_UP: usize = 500;

/// The times of each row, round by round, each round sorted.
pub(super) struct Rounds<R>(BTreeMap<R, Vec<Vec<Duration>>>);

impl<R: Copy + Ord> Rounds<R> {
    /// Measures the rows. `calls` makes so many calls of a row one after the other, and returns how long each takes.
    pub(super) async fn of(rows: &[R], mut calls: impl AsyncFnMut(R, usize) -> Vec<Duration>) -> Self {
        for row in rows {
            calls(*row, scaled(WARM_UP)).await;
        }
        let mut times = BTreeMap::<R, Vec<_>>::new();
        for _ in 0..scaled(ROUNDS) {
            for row in rows {
                let mut round = calls(*row, scaled(CALLS)).await;
                round.sort_unstable();
                times.entry(*row).or_default().push(round);
            }
        }
        Self(times)
    }

    /// Prints a row.
    pub(super) fn report(&self, row: R, name: &str) {
        report(name, &mut self.0[&row].concat());
    }

    /// Returns the time within which this share of a row's calls ended, in milliseconds.
    pub(super) fn share(&self, row: R, part: f64) -> f64 {
        let mut all = self.0[&row].concat();
        all.sort_unstable();
        share(&all, part)
    }

    /// Prints by how much the median of a row exceeds the sum of the medians of others: of all calls, and the quartiles
    /// of the rounds.
    pub(super) fn added(&self, what: &str, row: R, base: &[R]) {
        let median = |row: R| self.share(row, 0.5);
        let whole = median(row) - base.iter().map(|it| median(*it)).sum::<f64>();
        let round = |row: R, n: usize| share(&self.0[&row][n], 0.5);
        let each = |n| round(row, n) - base.iter().map(|it| round(*it, n)).sum::<f64>();
        let count = scaled(ROUNDS);
        let mut rounds: Vec<f64> = (0..count).map(each).collect();
        rounds.sort_unstable_by(f64::total_cmp);
        let [low, high] = [count / 4, count * 3 / 4].map(|at| rounds[at]);
        println!("  {what} adds to p50: {whole:.2} ms; half of the {count} rounds {low:.2} to {high:.2}");
    }
}

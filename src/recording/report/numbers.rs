//! Computes the report's statistics: calls by outcome, and latencies of each tool.

use std::collections::BTreeMap;

use super::super::{RecordedCall, RecordedOutcome};
use crate::tool::ErrorCode;

/// The outcome of a call, reduced to what a color can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Ok,
    /// The tool failed or returned its own error code.
    Error,
    Timeout,
    /// It was stopped, with or without an answer.
    Cancelled,
    /// Its owner left.
    Lost,
    /// It did not start: unknown tool, invalid parameters, no permission or overload.
    Refused,
    /// The file does not contain the outcome.
    Open,
}

/// The number of endings.
pub(super) const ENDINGS: usize = 7;

impl Ending {
    pub(super) fn of(outcome: &RecordedOutcome) -> Self {
        let code = match outcome {
            RecordedOutcome::Open => return Self::Open,
            RecordedOutcome::Ok => return Self::Ok,
            RecordedOutcome::Stopped => return Self::Cancelled,
            RecordedOutcome::Failed { code, .. } => code,
        };
        let refusals = [
            ErrorCode::UNKNOWN_TOOL,
            ErrorCode::INVALID_PARAMETERS,
            ErrorCode::PERMISSION_DENIED,
            ErrorCode::BUSY,
        ];
        if *code == ErrorCode::TIMEOUT {
            Self::Timeout
        } else if *code == ErrorCode::CANCELLED {
            Self::Cancelled
        } else if *code == ErrorCode::LOST {
            Self::Lost
        } else if refusals.contains(code) {
            Self::Refused
        } else {
            Self::Error
        }
    }
}

/// The statistics of one tool's calls, or of all calls.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub(super) calls: usize,
    pub(super) by_ending: [usize; ENDINGS],
    /// The sorted times from request to result, in nanoseconds, of calls with both in the file.
    times: Vec<u64>,
}

impl Numbers {
    fn add(&mut self, call: &RecordedCall) {
        self.calls += 1;
        self.by_ending[Ending::of(&call.outcome) as usize] += 1;
        // An observer may receive the result before the request; the duration is then unknown.
        if let (Some(requested), Some(settled)) = (call.requested, call.settled)
            && requested <= settled
        {
            self.times.push(settled.0.saturating_sub(requested.0));
        }
    }

    /// A percentile of the times in microseconds, by the nearest-rank method: always a measured time.
    pub(super) fn percentile(&self, hundredths: usize) -> Option<u64> {
        let rank = (self.times.len() * hundredths).div_ceil(100).max(1);
        self.times.get(rank - 1).map(|time| time / 1000)
    }
}

/// Returns the statistics of all calls, and of each tool.
pub(super) fn numbers(calls: &[RecordedCall]) -> (Numbers, BTreeMap<&str, Numbers>) {
    let (mut all, mut tools) = (Numbers::default(), BTreeMap::<&str, Numbers>::new());
    for call in calls {
        all.add(call);
        tools.entry(&call.tool).or_default().add(call);
    }
    all.times.sort_unstable();
    for numbers in tools.values_mut() {
        numbers.times.sort_unstable();
    }
    (all, tools)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_times() {
        let of = |times: &[u64]| Numbers { times: times.to_vec(), ..Numbers::default() };
        let ten: Vec<u64> = (1..=10).map(|ms| ms * 1_000_000).collect();
        let ten = of(&ten);
        assert_eq!([50, 90, 99, 100].map(|it| ten.percentile(it)), [5, 9, 10, 10].map(|ms| Some(ms * 1000)));
        assert_eq!(of(&[]).percentile(50), None);
        assert_eq!(of(&[7000]).percentile(50), Some(7));
    }

    #[test]
    fn endings_follow_the_code() {
        let failed = |code: &str| RecordedOutcome::Failed { code: code.into(), message: None };
        for (code, ending) in [
            ("timeout", Ending::Timeout),
            ("cancelled", Ending::Cancelled),
            ("lost", Ending::Lost),
            ("busy", Ending::Refused),
            ("unknown_tool", Ending::Refused),
            ("execution_error", Ending::Error),
            ("error 301", Ending::Error),
            ("no_such_album", Ending::Error),
        ] {
            assert_eq!(Ending::of(&failed(code)), ending, "{code}");
        }
        assert_eq!(Ending::of(&RecordedOutcome::Stopped), Ending::Cancelled);
    }
}

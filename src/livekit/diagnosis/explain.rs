//! Explains what the steps find: what is wrong and what to do. It has no I/O and no clock.

pub(super) mod network;
pub(super) mod room;
pub(super) mod token;
pub(super) mod verdict;

/// The maximum number of items named in a list.
const NAMED: usize = 4;

/// Formats a list as `a, b and c`, shortened after [`NAMED`] items.
fn list<T: ToString>(items: &[T]) -> String {
    let mut words: Vec<_> = items.iter().take(NAMED).map(ToString::to_string).collect();
    if items.len() > NAMED {
        words.push(format!("{} more", items.len() - NAMED));
    }
    match words.as_slice() {
        [] => "none".to_owned(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Formats a duration in its largest unit.
fn span(seconds: i64) -> String {
    let (count, unit) = match seconds.unsigned_abs() {
        seconds if seconds >= 2 * 86_400 => (seconds / 86_400, "days"),
        seconds if seconds >= 2 * 3600 => (seconds / 3600, "hours"),
        seconds if seconds >= 120 => (seconds / 60, "minutes"),
        1 => (1, "second"),
        seconds => (seconds, "seconds"),
    };
    format!("{count} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::livekit::diagnosis::check::{CheckStatus, Finding};

    /// Asserts the status, and fragments of the problem and of the advice.
    #[track_caller]
    pub(super) fn fails(finding: &Finding, problem: &str, advice: &str) {
        says(finding, CheckStatus::Failed, problem, advice);
    }

    #[track_caller]
    pub(super) fn warns(finding: &Finding, problem: &str, advice: &str) {
        says(finding, CheckStatus::Warning, problem, advice);
    }

    #[track_caller]
    fn says(finding: &Finding, status: CheckStatus, problem: &str, advice: &str) {
        let (said, advised) =
            (finding.problem.as_deref().unwrap_or(""), finding.advice.as_deref().unwrap_or(""));
        assert_eq!(finding.status, status, "{finding:?}");
        assert!(said.contains(problem), "{said:?} without {problem:?}");
        assert!(advised.contains(advice), "{advised:?} without {advice:?}");
    }

    #[test]
    fn lists_and_durations_are_formatted_for_people() {
        assert_eq!(list::<u8>(&[]), "none");
        assert_eq!(list(&[1]), "1");
        assert_eq!(list(&[1, 2, 3]), "1, 2 and 3");
        assert_eq!(list(&[1, 2, 3, 4, 5, 6]), "1, 2, 3, 4 and 2 more");
        for (seconds, text) in [
            (0, "0 seconds"),
            (-1, "1 second"),
            (119, "119 seconds"),
            (120, "2 minutes"),
            (7200, "2 hours"),
            (-172_800, "2 days"),
            (i64::MIN, "106751991167300 days"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }
}

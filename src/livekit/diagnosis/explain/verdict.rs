//! Gives the verdict: whether the server can be used, and what to do first.

use crate::livekit::diagnosis::check::{Check, CheckStatus};

/// Draws the conclusion from all checks.
pub(crate) fn verdict(checks: &[Check]) -> String {
    let of = |status: CheckStatus| checks.iter().filter(move |check| check.status == status);
    let mut failed = of(CheckStatus::Failed);
    if let Some(first) = failed.next() {
        let others: Vec<_> = failed.map(|check| check.title).collect();
        let also =
            if others.is_empty() { String::new() } else { format!(" Also failed: {}.", others.join("; ")) };
        let (title, problem, advice) = (first.title, said(&first.problem), said(&first.advice));
        return format!(
            "The server cannot be used from this machine ({title}): {problem}.{also} What to do: {advice}."
        );
    }
    let no_echo = checks.last().filter(|check| check.status == CheckStatus::Skipped);
    let mut text = match no_echo {
        None => "The server works: the join succeeded, and data reached another participant and came back."
            .to_owned(),
        Some(_) => {
            "The server works as far as one token can show: the join succeeded, and packets pass.".to_owned()
        }
    };
    let warned: Vec<_> =
        of(CheckStatus::Warning).map(|check| format!("{} ({})", said(&check.problem), check.title)).collect();
    if !warned.is_empty() {
        text.push_str(&format!(" Warnings: {}.", warned.join("; ")));
    }
    if let Some(echo) = no_echo {
        text.push_str(&format!(" Not checked: data between two participants ({}).", said(&echo.found)));
    }
    text
}

fn said(text: &Option<String>) -> &str {
    text.as_deref().unwrap_or("no details").trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::livekit::diagnosis::check::{Finding, Step};

    fn conclusion<const N: usize>(findings: [(Step, Finding); N]) -> String {
        verdict(&findings.map(|(step, finding)| Check::new(step, finding)))
    }

    #[test]
    fn first_failure_is_the_verdict() {
        let text = conclusion([
            (Step::Name, Finding::ok("x is 192.0.2.1")),
            (Step::Clock, Finding::warning("a bit", "fix it")),
            (Step::Token, Finding::failed("it is old", "make a new one.")),
            (Step::Udp, Finding::failed("blocked", "open it")),
            (Step::Echo, Finding::skipped("because")),
        ]);
        assert_eq!(
            text,
            "The server cannot be used from this machine (token): it is old. Also failed: packets, UDP. What to do: make a new one."
        );
    }

    #[test]
    fn warnings_are_part_of_a_good_verdict() {
        let text = conclusion([
            (Step::Clock, Finding::warning("one", "a")),
            (Step::Tcp, Finding::warning("two", "b")),
            (Step::Echo, Finding::ok("there and back")),
        ]);
        assert!(text.starts_with("The server works: "));
        assert!(text.ends_with(" Warnings: one (clock); two (packets, TCP)."), "{text}");
    }

    #[test]
    fn skipped_echo_is_part_of_the_verdict() {
        let text = conclusion([(Step::Echo, Finding::skipped("needs a key"))]);
        assert!(text.contains("as far as one token can show"));
        assert!(text.ends_with("Not checked: data between two participants (needs a key)."));
    }
}

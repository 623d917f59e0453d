//! Gives the verdict: whether the server works, and what to do first.

use crate::cli::room::doctor::step::{State, Step, StepReport};

/// The conclusion from all steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli::room::doctor) struct Verdict {
    /// Whether an app on this machine can use the server.
    pub(in crate::cli::room::doctor) works: bool,
    pub(in crate::cli::room::doctor) text: String,
}

/// Draws the conclusion from the steps.
pub(in crate::cli::room::doctor) fn verdict(steps: &[(Step, StepReport)]) -> Verdict {
    let of = |state: State| steps.iter().filter(move |(_, report)| report.state == state);
    let was = |step: Step| steps.iter().find(|(it, _)| *it == step).map(|(_, report)| report);
    let mut failed = of(State::Failed);
    if let Some((step, report)) = failed.next() {
        let others: Vec<_> = failed.map(|(step, _)| step.title()).collect();
        let also =
            if others.is_empty() { String::new() } else { format!(" Also failed: {}.", others.join("; ")) };
        let (wrong, advice) = (said(report.wrong.as_deref()), said(report.advice.as_deref()));
        let text = format!(
            "The server cannot be used from this machine ({}): {wrong}.{also} What to do: {advice}.",
            step.title()
        );
        return Verdict { works: false, text };
    }
    let echo = was(Step::Echo).filter(|report| report.state != State::Skipped);
    let mut text = match echo {
        Some(_) => {
            "The server works: the join succeeded, and data reached another participant and came back."
                .to_owned()
        }
        None => {
            "The server works as far as one token can show: the join succeeded, and packets pass.".to_owned()
        }
    };
    let warned: Vec<_> = of(State::Warning).collect();
    if !warned.is_empty() {
        text.push_str(" Warnings:");
        for (at, (step, report)) in warned.iter().enumerate() {
            let sign = if at == 0 { ' ' } else { ';' };
            let space = if at == 0 { "" } else { " " };
            text.push_str(&format!("{sign}{space}{} ({})", said(report.wrong.as_deref()), step.title()));
        }
        text.push('.');
    }
    if let Some(report) = was(Step::Echo).filter(|report| report.state == State::Skipped) {
        text.push_str(&format!(
            " Not checked: data between two participants ({}).",
            said(report.found.as_deref())
        ));
    }
    Verdict { works: true, text }
}

fn said(text: Option<&str>) -> &str {
    text.unwrap_or("no details").trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_failure_is_the_verdict() {
        let steps = [
            (Step::Name, StepReport::ok("x is 192.0.2.1")),
            (Step::Clock, StepReport::warning("a bit", "fix it")),
            (Step::Token, StepReport::failed("it is old", "make a new one.")),
            (Step::Udp, StepReport::failed("blocked", "open it")),
            (Step::Echo, StepReport::skipped("because")),
        ];
        let verdict = verdict(&steps);
        assert!(!verdict.works);
        assert_eq!(
            verdict.text,
            "The server cannot be used from this machine (token): it is old. Also failed: packets, UDP. What to do: make a new one."
        );
    }

    #[test]
    fn warnings_are_part_of_a_good_verdict() {
        let steps = [
            (Step::Clock, StepReport::warning("one", "a")),
            (Step::Tcp, StepReport::warning("two", "b")),
            (Step::Echo, StepReport::ok("there and back")),
        ];
        let verdict = verdict(&steps);
        assert!(verdict.works);
        assert!(verdict.text.starts_with("The server works: "));
        assert!(verdict.text.ends_with(" Warnings: one (clock); two (packets, TCP)."), "{}", verdict.text);
    }

    #[test]
    fn skipped_echo_is_part_of_the_verdict() {
        let verdict = verdict(&[(Step::Echo, StepReport::skipped("needs a key"))]);
        assert!(verdict.works && verdict.text.contains("as far as one token can show"));
        assert!(verdict.text.ends_with("Not checked: data between two participants (needs a key)."));
    }
}

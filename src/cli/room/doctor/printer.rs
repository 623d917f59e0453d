//! Prints the results of the steps as text or JSON.

use std::{
    io::{self, Write as _},
    time::Duration,
};

use serde_json::json;

use super::{
    diagnosis::verdict::Verdict,
    step::{Step, StepReport},
};
use crate::cli::terminal::{
    table::{terminal_width, wrapped},
    text,
};

/// The maximum width of the text, in columns: longer lines are hard to read.
const WIDTH: usize = 100;
/// The column at which a step's text begins.
const INDENT: usize = 34;

/// Prints to standard output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Printer {
    pub(super) json: bool,
}

impl Printer {
    /// Prints which server is checked.
    pub(super) fn title(self, server: &str) -> io::Result<()> {
        if self.json {
            return Ok(());
        }
        let title = format!("Checking {} with the connection steps of an app.", text::plain(server));
        writeln!(io::stdout(), "{}\n", wrapped(&title, 0, width()))
    }

    /// Prints a step and how long it took.
    pub(super) fn step(self, step: Step, report: &StepReport, took: Duration) -> io::Result<()> {
        let ms = (took.as_secs_f64() * 1e4).round() / 10.0;
        if self.json {
            let line = json!({
                "step": step.as_str(),
                "state": report.state.as_str(),
                "ms": ms,
                "found": report.found,
                "wrong": report.wrong,
                "advice": report.advice,
            });
            return writeln!(io::stdout(), "{}", text::json(&line));
        }
        writeln!(io::stdout(), "{}", lines(step, report, took, width()))
    }

    /// Prints the verdict.
    pub(super) fn verdict(self, verdict: &Verdict) -> io::Result<()> {
        if self.json {
            let line = json!({"verdict": verdict.text, "works": verdict.works});
            return writeln!(io::stdout(), "{}", text::json(&line));
        }
        writeln!(io::stdout(), "\n{}", wrapped(&text::plain(&verdict.text), 0, width()))
    }
}

/// Returns the width of the text.
fn width() -> Option<usize> {
    Some(terminal_width().map_or(WIDTH, |width| width.min(WIDTH)))
}

fn lines(step: Step, report: &StepReport, took: Duration, width: Option<usize>) -> String {
    let mut said = Vec::new();
    said.extend(report.found.clone());
    said.extend(report.wrong.clone());
    let time = match took.as_secs_f64() {
        seconds if seconds >= 1.0 => format!("{seconds:.1} s"),
        // Steps without I/O show no time.
        seconds if seconds < 0.000_5 => String::new(),
        seconds => format!("{:.0} ms", seconds * 1e3),
    };
    let mut text = format!("  {:<8} {:<13} {time:>7}  ", report.state, step.title());
    let said: Vec<_> = said.iter().map(|line| wrapped(&text::plain(line), INDENT, width)).collect();
    let pause = format!("\n{}", " ".repeat(INDENT));
    text.push_str(&said.join(&pause));
    if let Some(advice) = &report.advice {
        text.push_str(&format!("{pause}→ {}", wrapped(&text::plain(advice), INDENT + 2, width)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_is_printed_with_its_advice_below() {
        let report = StepReport::failed("it is shut", "open it").found("an address");
        let text = lines(Step::Udp, &report, Duration::from_millis(8040), Some(WIDTH));
        let expected = "  failed   packets, UDP    8.0 s  an address\n                                  it is shut\n                                  → open it";
        assert_eq!(text, expected);
        let skipped = lines(Step::Tls, &StepReport::skipped("no need"), Duration::ZERO, None);
        assert_eq!(skipped, "  skipped  encryption             no need");
        let hostile = lines(Step::Http, &StepReport::ok("a\u{1b}[31mb"), Duration::ZERO, None);
        assert!(!hostile.contains('\u{1b}'));
        let long = StepReport::failed("it is shut ".repeat(9).trim(), "open it ".repeat(9).trim());
        let narrow = lines(Step::Udp, &long, Duration::ZERO, Some(60));
        assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
    }
}

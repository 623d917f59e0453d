//! Prints checks as text or JSON.

use std::{
    io::{self, Write as _},
    time::Duration,
};

use serde_json::json;

use crate::cli::terminal::{
    table::{terminal_width, wrapped},
    text,
};
use toolbridge::{
    cli_support,
    livekit::{Check, CheckStatus},
};

/// What the library calls a setting in the texts of a diagnosis, and how a person sets it on the command line.
const OPTIONS: [(&str, &str); 5] = [
    ("add its root with `ConnectOptions::root_certificates`", "pass its root with --root-certificate FILE"),
    ("use `ConnectOptions::root_certificates`", "pass --root-certificate FILE"),
    ("set a longer `ConnectOptions::join_timeout`", "pass a longer --limit"),
    ("`ConnectOptions::relay_only` is set", "--relay-only was given"),
    ("use the name of an existing room", "pass an existing room with --room"),
];

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

    /// Prints a check and how long it took.
    pub(super) fn check(self, check: &Check, took: Duration) -> io::Result<()> {
        let [found, wrong, advice] =
            [&check.found, &check.problem, &check.advice].map(|text| text.as_deref().map(with_options));
        if self.json {
            let ms = (took.as_secs_f64() * 1e4).round() / 10.0;
            let line = json!({
                "step": check.name,
                "state": check.status.to_string(),
                "ms": ms,
                "found": found,
                "wrong": wrong,
                "advice": advice,
            });
            return writeln!(io::stdout(), "{}", text::json(&line));
        }
        let title = cli_support::title(check);
        let lines = lines(title, check.status, &[found, wrong], advice.as_deref(), took, width());
        writeln!(io::stdout(), "{lines}")
    }

    /// Prints the verdict.
    pub(super) fn verdict(self, verdict: &str, works: bool) -> io::Result<()> {
        let verdict = with_options(verdict);
        if self.json {
            let line = json!({"verdict": verdict, "works": works});
            return writeln!(io::stdout(), "{}", text::json(&line));
        }
        writeln!(io::stdout(), "\n{}", wrapped(&text::plain(&verdict), 0, width()))
    }
}

/// Returns the width of the text.
fn width() -> Option<usize> {
    Some(terminal_width().map_or(WIDTH, |width| width.min(WIDTH)))
}

/// Returns a text of the library with the options of the command line in place of its own names.
fn with_options(said: &str) -> String {
    text::with_options(
        &OPTIONS.iter().fold(said.to_owned(), |said, (name, option)| said.replace(name, option)),
    )
}

fn lines(
    title: &str,
    status: CheckStatus,
    said: &[Option<String>],
    advice: Option<&str>,
    took: Duration,
    width: Option<usize>,
) -> String {
    let time = match took.as_secs_f64() {
        seconds if seconds >= 1.0 => format!("{seconds:.1} s"),
        // Steps without I/O show no time.
        seconds if seconds < 0.000_5 => String::new(),
        seconds => format!("{:.0} ms", seconds * 1e3),
    };
    let mut text = format!("  {status:<8} {title:<13} {time:>7}  ");
    let said: Vec<_> = said.iter().flatten().map(|line| wrapped(&text::plain(line), INDENT, width)).collect();
    let pause = format!("\n{}", " ".repeat(INDENT));
    text.push_str(&said.join(&pause));
    if let Some(advice) = advice {
        text.push_str(&format!("{pause}→ {}", wrapped(&text::plain(advice), INDENT + 2, width)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(text: &str) -> Option<String> {
        Some(text.trim().to_owned())
    }

    #[test]
    fn step_is_printed_with_its_advice_below() {
        let said = [some("an address"), some("it is shut")];
        let took = Duration::from_millis(8040);
        let text = lines("packets, UDP", CheckStatus::Failed, &said, Some("open it"), took, Some(WIDTH));
        let expected = "  failed   packets, UDP    8.0 s  an address\n                                  it is shut\n                                  → open it";
        assert_eq!(text, expected);
        let line = |status, found| lines("encryption", status, &[some(found)], None, Duration::ZERO, None);
        assert_eq!(line(CheckStatus::Skipped, "no need"), "  skipped  encryption             no need");
        assert!(!line(CheckStatus::Ok, "a\u{1b}[31mb").contains('\u{1b}'));
        let (said, advice) = ([None, some(&"it is shut ".repeat(9))], "open it ".repeat(9));
        let narrow = lines("packets, UDP", CheckStatus::Failed, &said, Some(advice.trim()), took, Some(60));
        assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
    }

    #[test]
    fn renamed_settings_are_in_the_texts_of_the_library() {
        let texts = concat!(
            include_str!("../../../livekit/diagnosis.rs"),
            include_str!("../../../livekit/diagnosis/explain/network.rs"),
            include_str!("../../../livekit/diagnosis/explain/room.rs")
        );
        assert!(OPTIONS.iter().all(|(name, _)| texts.contains(name)));
        assert_eq!(with_options("`ConnectOptions::relay_only` is set"), "--relay-only was given");
    }
}

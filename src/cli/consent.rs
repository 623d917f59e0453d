//! Asks for consent at the terminal before a tool runs that needs it.

use std::{
    collections::BTreeSet,
    io::{self, BufRead as _, IsTerminal as _},
    sync::{Arc, Mutex, MutexGuard, Once, PoisonError},
    thread,
};

use tokio::sync::broadcast::{self, error::RecvError};

use super::{
    Failure,
    grant::{Grant, Listed, offered},
    hint, text,
};
use toolbridge::{Consent, ConsentRequest, Tool};

/// The maximum number of unread answers. Faster typing loses answers.
const ANSWERS: usize = 64;

/// The maximum length of an answer, in bytes.
const LONGEST: usize = 64;

/// The maximum size of the arguments in a question, in bytes.
const SHOWN_ARGUMENTS: usize = 2 << 10;

/// Decides on consent for the tools that need it.
#[derive(Clone)]
pub(super) struct ConsentPrompt {
    /// The tools that run without asking.
    always: Arc<[Grant]>,
    /// Whether a person can be asked.
    can_ask: bool,
    terminal: Arc<Terminal>,
}

/// The questions at the terminal. Each has a number, so that an answer never applies to a later question.
struct Terminal {
    questions: Mutex<Questions>,
    reading: Once,
    answers: broadcast::Sender<Answer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    number: u64,
    allowed: bool,
}

/// A parsed answer. Without a number it applies to the only open question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    number: Option<u64>,
    allowed: bool,
}

/// The open questions.
#[derive(Debug, Default)]
struct Questions {
    last: u64,
    open: BTreeSet<u64>,
    /// The questions that were open at any time since the last line was read. An answer without a number could mean any of
    /// them: the question that the person read may have ended, and a new one may have appeared while they typed.
    meant: BTreeSet<u64>,
}

impl Questions {
    /// Opens a question and returns its number.
    fn ask(&mut self) -> u64 {
        self.last += 1;
        self.open.insert(self.last);
        self.meant.insert(self.last);
        self.last
    }

    fn end(&mut self, number: u64) {
        self.open.remove(&number);
    }

    /// Returns the answer of a line, or `None` if several questions could be meant.
    fn answer(&mut self, line: Line) -> Option<Answer> {
        let number = line.number.or_else(|| self.meant.first().copied().filter(|_| self.meant.len() == 1));
        self.meant.clone_from(&self.open);
        let number = number?;
        if line.number.is_none() && !self.open.contains(&number) {
            return None;
        }
        self.open.remove(&number);
        self.meant.remove(&number);
        Some(Answer { number, allowed: line.allowed })
    }
}

impl ConsentPrompt {
    /// Returns the consent prompt for the tools of these sources: a tool that `yes` allows runs without asking; for others
    /// it asks at the terminal if `may_ask` is set and standard input is a terminal. Returns `None` if no tool needs
    /// consent now, and none that a server offers later could get it.
    pub(super) fn of(sources: &[Listed], yes: &[String], may_ask: bool) -> Result<Option<Self>, Failure> {
        Self::at(sources, yes, may_ask, io::stdin().is_terminal())
    }

    fn at(
        sources: &[Listed],
        yes: &[String],
        may_ask: bool,
        is_terminal: bool,
    ) -> Result<Option<Self>, Failure> {
        let tools = offered(sources);
        let always = yes.iter().map(|pattern| {
            Grant::read(pattern, sources, &tools).ok_or_else(|| {
                Failure::Usage(format!(
                    "--yes {pattern:?}: there is no tool with this name, and no such server"
                ))
            })
        });
        let always: Arc<[Grant]> = always.collect::<Result<_, _>>()?;
        let can_ask = may_ask && is_terminal;
        let needs = |tool: &&Tool| tool.tool_options().effective_consent() != Consent::Never;
        let mut open = tools.iter().filter(needs).filter(|tool| !always.iter().any(|it| it.allows(tool)));
        if let Some(tool) = open.next().filter(|_| !can_ask) {
            let name = tool.name();
            let alternative = if may_ask { "run this at a terminal to be asked each time, or " } else { "" };
            let of_server =
                tool.source().map(|server| format!(", or all tools of its server with --yes '{server}.*'"));
            return Err(Failure::Usage(format!(
                "the tool \"{name}\" needs consent, but nobody can be asked; {alternative}allow every run with --yes {name}{}",
                of_server.unwrap_or_default()
            )));
        }
        // A server may offer further tools later.
        let has_servers = sources.iter().any(|source| source.server.is_some());
        let is_needed =
            tools.iter().any(|tool| needs(&tool)) || has_servers && (can_ask || !always.is_empty());
        let terminal = Terminal {
            questions: Mutex::default(),
            reading: Once::new(),
            answers: broadcast::Sender::new(ANSWERS),
        };
        Ok(is_needed.then(|| Self { always, can_ask, terminal: Arc::new(terminal) }))
    }

    /// Asks for consent, unless the tool may always run. Dropping the future withdraws the question.
    pub(super) async fn ask(self, request: ConsentRequest) -> bool {
        if self.always.iter().any(|grant| grant.allows(request.tool())) {
            return true;
        }
        // A server may offer further tools later.
        if !self.can_ask {
            return false;
        }
        let tool = request.tool().name().as_str();
        let mut answers = self.terminal.answers.subscribe();
        let (number, is_only) = {
            let mut questions = self.terminal.questions();
            (questions.ask(), questions.meant.len() == 1)
        };
        let mut open = Open { terminal: Arc::clone(&self.terminal), number, answered: false };
        self.terminal.clone().read();
        let arguments = shortened(text::json(&request.arguments().to_json()));
        hint(&format!("{} wants to run {tool} with {arguments}", request.caller()));
        let seconds = request.time_left().as_secs();
        let short = if is_only { " (or just y or n)" } else { "" };
        hint(&format!(
            "type `yes {number}` to allow it or `no {number}` to refuse it{short}; it is refused after {seconds} s"
        ));
        let allowed = loop {
            match answers.recv().await {
                Ok(answer) if answer.number == number => break answer.allowed,
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => break false,
            }
        };
        open.answered = true;
        allowed
    }
}

/// Shortens long arguments and states how much is omitted.
fn shortened(mut arguments: String) -> String {
    let length = arguments.len();
    if length > SHOWN_ARGUMENTS {
        let end = (0..=SHOWN_ARGUMENTS).rev().find(|at| arguments.is_char_boundary(*at));
        arguments.truncate(end.unwrap_or_default());
        let left_out = length - arguments.len();
        arguments += &format!(" … ({left_out} of {length} bytes omitted)");
    }
    arguments
}

/// An open question. Dropping it unanswered prints that it was withdrawn.
struct Open {
    terminal: Arc<Terminal>,
    number: u64,
    answered: bool,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.terminal.questions().end(self.number);
        if !self.answered {
            hint(&format!("question {} was withdrawn", self.number));
        }
    }
}

impl Terminal {
    fn questions(&self) -> MutexGuard<'_, Questions> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts reading the terminal, in a thread that ends with standard input or with the process. It starts with the first
    /// question, because a shell stops a background program that reads from the terminal.
    fn read(self: Arc<Self>) {
        let this = Arc::clone(&self);
        self.reading.call_once(move || {
            let started = thread::Builder::new().name("consent".to_owned()).spawn(move || {
                for line in io::stdin().lock().lines().map_while(Result::ok) {
                    if line.trim().is_empty() {
                        continue;
                    }
                    let answer = read(&line).and_then(|line| this.questions().answer(line));
                    match answer {
                        // Sending fails if no question is open.
                        Some(answer) => drop(this.answers.send(answer)),
                        None => hint("type `yes` or `no` and the number of the question"),
                    }
                }
            });
            if let Err(error) = started {
                hint(&format!("cannot read answers from the terminal: {error}"));
            }
        });
    }
}

/// Parses a line: `yes` or `no`, and optionally the number of the question.
fn read(line: &str) -> Option<Line> {
    if line.len() > LONGEST {
        return None;
    }
    let mut words = line.split_whitespace();
    let allowed = match words.next()? {
        "yes" | "y" => true,
        "no" | "n" => false,
        _ => return None,
    };
    let number = words.next().map(|number| number.parse().ok()).map_or(Some(None), |it| it.map(Some))?;
    words.next().is_none().then_some(Line { number, allowed })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        read(text).unwrap()
    }

    #[test]
    fn answer_is_a_word_and_an_optional_number() {
        assert_eq!(read("yes 3\r"), Some(Line { number: Some(3), allowed: true }));
        assert_eq!(read(" n  12 "), Some(Line { number: Some(12), allowed: false }));
        assert_eq!(read("y"), Some(Line { number: None, allowed: true }));
        assert_eq!(read("no\n"), Some(Line { number: None, allowed: false }));
        for none in ["", "3", "yes three", "yes -1", "yess 3", "Y", "yes 3 4", &"yes 1".repeat(20)] {
            assert_eq!(read(none), None, "{none}");
        }
    }

    #[test]
    fn answer_without_a_number_is_for_the_only_open_question() {
        let mut questions = Questions::default();
        assert_eq!(questions.answer(line("y")), None, "no question is open");
        assert_eq!(questions.ask(), 1);
        assert_eq!(questions.answer(line("y")), Some(Answer { number: 1, allowed: true }));
        questions.end(1);
        assert_eq!((questions.ask(), questions.ask()), (2, 3));
        assert_eq!(questions.answer(line("n")), None, "two are open");
        assert_eq!(questions.answer(line("n 2")), Some(Answer { number: 2, allowed: false }));
        questions.end(2);
        assert_eq!(questions.answer(line("n")), Some(Answer { number: 3, allowed: false }));
    }

    #[test]
    fn answer_without_a_number_is_not_for_a_question_that_replaced_another() {
        let mut questions = Questions::default();
        questions.ask();
        questions.end(1);
        questions.ask();
        assert_eq!(questions.answer(line("y")), None, "it may be for the first");
        assert_eq!(questions.answer(line("y")), Some(Answer { number: 2, allowed: true }));
        questions.ask();
        questions.end(3);
        assert_eq!(questions.answer(line("y")), None);
    }

    #[test]
    fn person_can_be_asked_about_tools_that_a_server_offers_later() {
        let server = || Listed { server: Some("files".to_owned()), tools: Vec::new() };
        let is_set = |sources: &[Listed], yes: &[&str], is_terminal| {
            let yes: Vec<String> = yes.iter().map(|it| (*it).to_owned()).collect();
            let Ok(prompt) = ConsentPrompt::at(sources, &yes, true, is_terminal) else { panic!("{yes:?}") };
            prompt.is_some()
        };
        assert!(is_set(&[server()], &[], true), "nobody is asked");
        assert!(is_set(&[server()], &["files.*"], false), "what is allowed does not run");
        // Otherwise the tools are left out, with this reason.
        assert!(!is_set(&[server()], &[], false));
        assert!(!is_set(&[Listed { server: None, tools: Vec::new() }], &[], true));
    }

    #[test]
    fn long_arguments_are_cut_and_the_rest_is_counted() {
        assert_eq!(shortened("{}".to_owned()), "{}");
        let exact = "x".repeat(SHOWN_ARGUMENTS);
        assert_eq!(shortened(exact.clone()), exact);
        let long = shortened(format!("{}äää", "x".repeat(SHOWN_ARGUMENTS - 1)));
        assert_eq!(long, format!("{} … (6 of 2053 bytes omitted)", "x".repeat(SHOWN_ARGUMENTS - 1)));
    }
}

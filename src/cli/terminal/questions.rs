//! Asks questions at the terminal: each has a number, and a line that a person types is the answer to one.

use std::{
    collections::BTreeSet,
    io::{self, BufRead as _},
    sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError},
    thread,
    time::Duration,
};

use tokio::sync::{
    broadcast::{self, error::RecvError},
    mpsc, watch,
};
use tokio::time::sleep;

use crate::cli::terminal::{failure::hint, screen, text};
use toolbridge::adapter::acp;

/// The maximum number of unread answers. Faster typing loses answers.
const ANSWERS: usize = 64;

/// The maximum length of an answer, in bytes.
const LONGEST: usize = 64;

/// The most lines that wait for their reader.
const LINES: usize = 16;

/// How long nothing is printed before an open question is printed again.
const QUIET: Duration = Duration::from_millis(300);

/// How often that is awaited. Then the question is printed again although more may follow.
const PATIENCE: u32 = 10;

/// The most lines of a question that are printed again. Of a longer one the first and the last lines are.
const AGAIN: usize = 40;

/// How many first lines of a longer question are printed again.
const AGAIN_FIRST: usize = 10;

/// What a person types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Word {
    Yes,
    No,
    /// The option with this number, counted from 1.
    Option(usize),
    /// A text, if the question takes any.
    Text(String),
}

/// The questions at the terminal. Each has a number, so that an answer never applies to a later question.
pub(in crate::cli) struct Terminal {
    questions: Mutex<Questions>,
    reading: Once,
    answers: broadcast::Sender<Answer>,
    /// Who reads the lines that are not answers.
    others: Mutex<Option<mpsc::Sender<String>>>,
    /// How often something other than a question was printed.
    disturbed: watch::Sender<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    number: u64,
    word: Word,
}

/// A parsed answer. Without a number it applies to the only open question.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ParsedAnswer {
    number: Option<u64>,
    word: Word,
}

/// Where a line goes.
#[derive(Debug, PartialEq, Eq)]
enum Routed {
    To(Answer),
    /// It is an answer, but several questions could be meant.
    Unclear,
    /// It is no answer.
    Other,
}

/// The open questions.
#[derive(Debug, Default)]
struct Questions {
    last: u64,
    open: BTreeSet<u64>,
    /// The questions that were open at any time since the last line was read. An answer without a number could mean any of
    /// them: the question that the person read may have ended, and a new one may have appeared while they typed.
    meant: BTreeSet<u64>,
    /// The questions that take a text.
    of_text: BTreeSet<u64>,
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
        self.of_text.remove(&number);
    }

    /// Decides where a line goes. A question that takes a text gets any line while no other could be meant, except one that
    /// answers another by its number. It stays open for further lines.
    fn route(&mut self, line: &str) -> Routed {
        let takes_text = |number: u64| self.of_text.contains(&number) && self.open.contains(&number);
        let parsed = read(line);
        let is_numbered =
            parsed.as_ref().and_then(|line| line.number).is_some_and(|number| self.open.contains(&number));
        let only = self.meant.first().copied().filter(|_| self.meant.len() == 1 && !is_numbered);
        let text = numbered_text(line)
            .filter(|(number, _)| takes_text(*number))
            .or_else(|| only.filter(|number| takes_text(*number)).map(|number| (number, line)));
        if let Some((number, text)) = text {
            let word = Word::Text(text.to_owned());
            self.meant.clone_from(&self.open);
            return Routed::To(Answer { number, word });
        }
        let awaits_text = self.meant.iter().any(|number| takes_text(*number));
        match parsed {
            Some(line) if !self.meant.is_empty() => self.answer(line).map_or(Routed::Unclear, Routed::To),
            None if awaits_text && !line.trim().is_empty() => {
                self.meant.clone_from(&self.open);
                Routed::Unclear
            }
            _ => Routed::Other,
        }
    }

    /// Returns the answer of a line, or `None` if several questions could be meant.
    fn answer(&mut self, line: ParsedAnswer) -> Option<Answer> {
        let number = line.number.or_else(|| self.meant.first().copied().filter(|_| self.meant.len() == 1));
        self.meant.clone_from(&self.open);
        let number = number?;
        if line.number.is_none() && !self.open.contains(&number) {
            return None;
        }
        self.open.remove(&number);
        self.meant.remove(&number);
        Some(Answer { number, word: line.word })
    }
}

/// An open question. Dropping it unanswered prints that it was withdrawn.
pub(in crate::cli) struct Open {
    terminal: Arc<Terminal>,
    answers: broadcast::Receiver<Answer>,
    number: u64,
    is_only: bool,
    answered: bool,
    /// What the person is asked.
    asked: Vec<String>,
    /// What the person may type.
    choices: Vec<String>,
    /// The count of [`Terminal::disturbed`] when it was printed.
    printed_at: u64,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.terminal.questions().end(self.number);
        if !self.answered {
            hint(&format!("question {} was withdrawn", self.number));
        }
    }
}

impl Open {
    pub(in crate::cli) fn number(&self) -> u64 {
        self.number
    }

    /// Returns whether an answer without a number is enough.
    pub(in crate::cli) fn is_only(&self) -> bool {
        self.is_only
    }

    /// Prints the question: what the person is asked, and what may be typed. It is printed again after other output.
    pub(in crate::cli) fn print(&mut self, asked: Vec<String>, choices: Vec<String>) {
        (self.asked, self.choices) = (asked, choices);
        let all = [&self.asked[..], &self.choices[..]].concat();
        self.printed_at = self.terminal.disturbances();
        screen::write(&all);
    }

    /// Goes on to the next part of the question, and prints it: what may be typed now.
    pub(in crate::cli) fn go_on(&mut self, choices: Vec<String>) {
        self.choices = choices;
        self.remark(None);
    }

    /// Prints a remark about an answer, and what may be typed.
    pub(in crate::cli) fn remark(&mut self, remark: Option<&str>) {
        let mut lines: Vec<String> = remark.map(|it| text::plain(it).into_owned()).into_iter().collect();
        lines.extend(self.choices.iter().cloned());
        screen::write(&lines);
    }

    fn print_again(&mut self) {
        self.printed_at = self.terminal.disturbances();
        let mut lines = vec![format!("question {} is still open:", self.number)];
        if self.asked.len() > AGAIN {
            lines.extend(self.asked[..AGAIN_FIRST].iter().cloned());
            lines.push(format!("… {} more lines, which are above", self.asked.len() - AGAIN_FIRST));
        } else {
            lines.extend(self.asked.iter().cloned());
        }
        lines.extend(self.choices.iter().cloned());
        screen::write(&lines);
    }

    /// Returns the next answer, or `None` if there will be none. An answer that does not fit can be followed by another.
    pub(in crate::cli) async fn answer(&mut self) -> Option<Word> {
        loop {
            let answer = tokio::select! {
                biased;
                answer = self.answers.recv() => answer,
                () = self.terminal.quiet_after(self.printed_at), if !self.asked.is_empty() => {
                    self.print_again();
                    continue;
                }
            };
            match answer {
                Ok(answer) if answer.number == self.number => {
                    self.answered = !matches!(answer.word, Word::Text(_));
                    return Some(answer.word);
                }
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// Takes texts from now on, any number of them, until it is [closed](Self::close) or answered with a word.
    pub(in crate::cli) fn take_text(&mut self) {
        self.terminal.questions().of_text.insert(self.number);
    }

    /// Ends the question as answered.
    pub(in crate::cli) fn close(&mut self) {
        self.answered = true;
        self.terminal.questions().end(self.number);
    }

    /// Opens the question again, after an answer that does not fit.
    pub(in crate::cli) fn again(&mut self) {
        self.answered = false;
        let mut questions = self.terminal.questions();
        questions.open.insert(self.number);
        questions.meant.insert(self.number);
    }
}

impl Terminal {
    /// Returns the terminal of this process.
    pub(in crate::cli) fn shared() -> &'static Arc<Self> {
        static TERMINAL: OnceLock<Arc<Terminal>> = OnceLock::new();
        TERMINAL.get_or_init(|| {
            let answers = broadcast::Sender::new(ANSWERS);
            Arc::new(Self {
                questions: Mutex::default(),
                reading: Once::new(),
                answers,
                others: Mutex::default(),
                disturbed: watch::Sender::new(0),
            })
        })
    }

    /// Opens a question. The caller prints it. Dropping it withdraws it.
    pub(in crate::cli) fn ask(self: &Arc<Self>) -> Open {
        let answers = self.answers.subscribe();
        let (number, is_only) = {
            let mut questions = self.questions();
            (questions.ask(), questions.meant.len() == 1)
        };
        Arc::clone(self).read();
        Open {
            terminal: Arc::clone(self),
            answers,
            number,
            is_only,
            answered: false,
            asked: Vec::new(),
            choices: Vec::new(),
            printed_at: 0,
        }
    }

    /// Notes that something other than a question was printed.
    pub(in crate::cli) fn disturb(&self) {
        self.disturbed.send_modify(|count| *count += 1);
    }

    fn disturbances(&self) -> u64 {
        *self.disturbed.borrow()
    }

    /// Resolves when something was printed after this count, and nothing since a moment.
    async fn quiet_after(&self, count: u64) {
        let mut changes = self.disturbed.subscribe();
        // The sender is in `self`.
        let _ = changes.wait_for(|now| *now != count).await;
        for _ in 0..PATIENCE {
            let before = self.disturbances();
            sleep(QUIET).await;
            if self.disturbances() == before {
                break;
            }
        }
    }

    /// Returns the lines that are not answers: all while no question is open, and otherwise those without the form of an
    /// answer. They end with standard input.
    pub(in crate::cli) fn lines(self: &Arc<Self>) -> mpsc::Receiver<String> {
        let (sender, lines) = mpsc::channel(LINES);
        *self.others.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        Arc::clone(self).read();
        lines
    }

    /// Passes a line on. Returns whether somebody reads such lines.
    fn pass_on(&self, line: &str) -> bool {
        let sender = self.others.lock().unwrap_or_else(PoisonError::into_inner).clone();
        sender.is_some_and(|sender| sender.blocking_send(line.to_owned()).is_ok())
    }

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
                    if line.trim() == "forget" {
                        hint(&format!("{} permissions are forgotten", acp::forget_permissions()));
                        continue;
                    }
                    // Whoever reads the other lines may stop what asks.
                    if line.trim() == "cancel" && this.pass_on(&line) {
                        continue;
                    }
                    let routed = this.questions().route(&line);
                    match routed {
                        // Sending fails if no question is open.
                        Routed::To(answer) => drop(this.answers.send(answer)),
                        _ if line.trim().is_empty() => {}
                        Routed::Other if this.pass_on(&line) => {}
                        _ => hint(
                            "type `yes`, `no` or `option` with its number, and the number of the question",
                        ),
                    }
                }
                *this.others.lock().unwrap_or_else(PoisonError::into_inner) = None;
            });
            if let Err(error) = started {
                hint(&format!("cannot read answers from the terminal: {error}"));
            }
        });
    }
}

/// Parses a line: `yes`, `no` or `option K`, and optionally the number of the question.
fn read(line: &str) -> Option<ParsedAnswer> {
    if line.len() > LONGEST {
        return None;
    }
    let mut words = line.split_whitespace();
    let word = match words.next()? {
        "yes" | "y" => Word::Yes,
        "no" | "n" => Word::No,
        "option" | "o" => Word::Option(words.next()?.parse().ok()?),
        _ => return None,
    };
    let number = words.next().map(|number| number.parse().ok()).map_or(Some(None), |it| it.map(Some))?;
    words.next().is_none().then_some(ParsedAnswer { number, word })
}

/// Parses `answer N TEXT`: a text for the question with this number.
fn numbered_text(line: &str) -> Option<(u64, &str)> {
    let rest = line.trim().strip_prefix("answer ")?.trim_start();
    let (number, text) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    Some((number.parse().ok()?, text.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> ParsedAnswer {
        read(text).unwrap()
    }

    #[test]
    fn answer_is_a_word_and_an_optional_number() {
        assert_eq!(read("yes 3\r"), Some(ParsedAnswer { number: Some(3), word: Word::Yes }));
        assert_eq!(read(" n  12 "), Some(ParsedAnswer { number: Some(12), word: Word::No }));
        assert_eq!(read("y"), Some(ParsedAnswer { number: None, word: Word::Yes }));
        assert_eq!(read("no\n"), Some(ParsedAnswer { number: None, word: Word::No }));
        assert_eq!(read("option 2 12"), Some(ParsedAnswer { number: Some(12), word: Word::Option(2) }));
        assert_eq!(read("o 1"), Some(ParsedAnswer { number: None, word: Word::Option(1) }));
        for none in [
            "option",
            "option x",
            "o 1 2 3",
            "",
            "3",
            "yes three",
            "yes -1",
            "yess 3",
            "Y",
            "yes 3 4",
            &"yes 1".repeat(20),
        ] {
            assert_eq!(read(none), None, "{none}");
        }
    }

    #[test]
    fn answer_without_a_number_is_for_the_only_open_question() {
        let mut questions = Questions::default();
        assert_eq!(questions.answer(line("y")), None, "no question is open");
        assert_eq!(questions.ask(), 1);
        assert_eq!(questions.answer(line("y")), Some(Answer { number: 1, word: Word::Yes }));
        questions.end(1);
        assert_eq!((questions.ask(), questions.ask()), (2, 3));
        assert_eq!(questions.answer(line("n")), None, "two are open");
        assert_eq!(questions.answer(line("n 2")), Some(Answer { number: 2, word: Word::No }));
        questions.end(2);
        assert_eq!(questions.answer(line("n")), Some(Answer { number: 3, word: Word::No }));
    }

    fn text(number: u64, text: &str) -> Routed {
        Routed::To(Answer { number, word: Word::Text(text.to_owned()) })
    }

    #[test]
    fn question_that_takes_a_text_gets_each_line_while_it_is_the_only_one() {
        let mut questions = Questions::default();
        assert_eq!(questions.route("Ada"), Routed::Other, "no question is open");
        let form = questions.ask();
        assert_eq!(questions.route("Ada"), Routed::Other, "it takes no text yet");
        questions.of_text.insert(form);
        for line in ["Ada", "", "-", "yes", "no", "option 2", "yes 7"] {
            assert_eq!(questions.route(line), text(1, line));
        }
        assert_eq!(questions.route("answer 1 no 1"), text(1, "no 1"));
        assert_eq!(questions.route("no 1"), Routed::To(Answer { number: 1, word: Word::No }));
        assert_eq!(questions.route("Ada"), Routed::Other, "it was answered");
    }

    #[test]
    fn text_needs_a_number_if_another_question_could_be_meant() {
        let mut questions = Questions::default();
        let form = questions.ask();
        questions.of_text.insert(form);
        let other = questions.ask();
        assert_eq!(questions.route("Ada"), Routed::Unclear);
        assert_eq!(questions.route(""), Routed::Other);
        assert_eq!(questions.route("y"), Routed::Unclear);
        assert_eq!(questions.route("answer 1  Ada B."), text(1, "Ada B."));
        assert_eq!(questions.route("answer 1"), text(1, ""));
        assert_eq!(questions.route("answer 2 Ada"), Routed::Unclear, "it takes no text");
        assert_eq!(questions.route("yes 2"), Routed::To(Answer { number: 2, word: Word::Yes }));
        questions.end(other);
        assert_eq!(questions.route("Ada"), text(1, "Ada"));
        // The line may be for a question that has ended while it was typed.
        let third = questions.ask();
        questions.end(third);
        assert_eq!(questions.route("y"), Routed::Unclear);
        assert_eq!(questions.route("y"), text(1, "y"));
    }

    #[test]
    fn answer_without_a_number_is_not_for_a_question_that_replaced_another() {
        let mut questions = Questions::default();
        questions.ask();
        questions.end(1);
        questions.ask();
        assert_eq!(questions.answer(line("y")), None, "it may be for the first");
        assert_eq!(questions.answer(line("y")), Some(Answer { number: 2, word: Word::Yes }));
        questions.ask();
        questions.end(3);
        assert_eq!(questions.answer(line("y")), None);
    }
}

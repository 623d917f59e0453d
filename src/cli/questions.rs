//! Questions at the terminal: each has a number, and a line that a person types is the answer to one.

use std::{
    collections::BTreeSet,
    io::{self, BufRead as _},
    sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError},
    thread,
};

use tokio::sync::{
    broadcast::{self, error::RecvError},
    mpsc,
};

use super::hint;
use toolbridge::adapter::acp;

/// The maximum number of unread answers. Faster typing loses answers.
const ANSWERS: usize = 64;

/// The maximum length of an answer, in bytes.
const LONGEST: usize = 64;

/// The most lines that wait for their reader.
const LINES: usize = 16;

/// What a person types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Yes,
    No,
    /// The option with this number, counted from 1.
    Option(usize),
}

/// The questions at the terminal. Each has a number, so that an answer never applies to a later question.
pub(super) struct Terminal {
    questions: Mutex<Questions>,
    reading: Once,
    answers: broadcast::Sender<Answer>,
    /// Who reads the lines that are not answers.
    others: Mutex<Option<mpsc::Sender<String>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    number: u64,
    word: Word,
}

/// A parsed answer. Without a number it applies to the only open question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    number: Option<u64>,
    word: Word,
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
        Some(Answer { number, word: line.word })
    }
}

/// An open question. Dropping it unanswered prints that it was withdrawn.
pub(super) struct Open {
    terminal: Arc<Terminal>,
    answers: broadcast::Receiver<Answer>,
    number: u64,
    is_only: bool,
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

impl Open {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns whether an answer without a number is enough.
    pub(super) fn is_only(&self) -> bool {
        self.is_only
    }

    /// Returns the next answer, or `None` if there will be none. An answer that does not fit can be followed by another.
    pub(super) async fn answer(&mut self) -> Option<Word> {
        loop {
            match self.answers.recv().await {
                Ok(answer) if answer.number == self.number => {
                    self.answered = true;
                    return Some(answer.word);
                }
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// Opens the question again, after an answer that does not fit.
    pub(super) fn again(&mut self) {
        self.answered = false;
        let mut questions = self.terminal.questions();
        questions.open.insert(self.number);
        questions.meant.insert(self.number);
    }
}

impl Terminal {
    /// Returns the terminal of this process.
    pub(super) fn shared() -> &'static Arc<Self> {
        static TERMINAL: OnceLock<Arc<Terminal>> = OnceLock::new();
        TERMINAL.get_or_init(|| {
            let answers = broadcast::Sender::new(ANSWERS);
            Arc::new(Self {
                questions: Mutex::default(),
                reading: Once::new(),
                answers,
                others: Mutex::default(),
            })
        })
    }

    /// Opens a question. The caller prints it. Dropping it withdraws it.
    pub(super) fn ask(self: &Arc<Self>) -> Open {
        let answers = self.answers.subscribe();
        let (number, is_only) = {
            let mut questions = self.questions();
            (questions.ask(), questions.meant.len() == 1)
        };
        Arc::clone(self).read();
        Open { terminal: Arc::clone(self), answers, number, is_only, answered: false }
    }

    /// Returns the lines that are not answers: all while no question is open, and otherwise those without the form of an
    /// answer. They end with standard input.
    pub(super) fn lines(self: &Arc<Self>) -> mpsc::Receiver<String> {
        let (sender, lines) = mpsc::channel(LINES);
        *self.others.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        Arc::clone(self).read();
        lines
    }

    /// Passes a line on. Returns whether somebody reads such lines.
    fn pass_on(&self, line: String) -> bool {
        let sender = self.others.lock().unwrap_or_else(PoisonError::into_inner).clone();
        sender.is_some_and(|sender| sender.blocking_send(line).is_ok())
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
                    if line.trim().is_empty() {
                        continue;
                    }
                    if line.trim() == "forget" {
                        hint(&format!("{} permissions are forgotten", acp::forget_permissions()));
                        continue;
                    }
                    let answer = read(&line).and_then(|line| {
                        let mut questions = this.questions();
                        if questions.meant.is_empty() { None } else { Some(questions.answer(line)) }
                    });
                    match answer {
                        // Sending fails if no question is open.
                        Some(Some(answer)) => drop(this.answers.send(answer)),
                        None if this.pass_on(line) => {}
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
fn read(line: &str) -> Option<Line> {
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
    words.next().is_none().then_some(Line { number, word })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        read(text).unwrap()
    }

    #[test]
    fn answer_is_a_word_and_an_optional_number() {
        assert_eq!(read("yes 3\r"), Some(Line { number: Some(3), word: Word::Yes }));
        assert_eq!(read(" n  12 "), Some(Line { number: Some(12), word: Word::No }));
        assert_eq!(read("y"), Some(Line { number: None, word: Word::Yes }));
        assert_eq!(read("no\n"), Some(Line { number: None, word: Word::No }));
        assert_eq!(read("option 2 12"), Some(Line { number: Some(12), word: Word::Option(2) }));
        assert_eq!(read("o 1"), Some(Line { number: None, word: Word::Option(1) }));
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

//! The question to whoever sits at the terminal, before a tool of ours runs that needs it.

use std::{
    io::{self, BufRead as _, IsTerminal as _},
    sync::{
        Arc, Once,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use tokio::sync::broadcast::{self, error::RecvError};

use super::{Failure, hint, text};
use crate::{Consent, ConsentRequest, ProgramTools, ToolSource as _};

/// Answers that nobody looked at yet. Whoever types faster is not understood.
const ANSWERS: usize = 64;

/// The longest line that can be an answer, in bytes.
const LONGEST: usize = 64;

/// Who answers for the tools that need it.
#[derive(Clone)]
pub(super) struct Asker {
    /// Tools that may run without a question.
    always: Arc<[String]>,
    asked: Arc<Asked>,
}

/// The questions at the terminal. Each has a number, so that no answer is for a question that came after it.
struct Asked {
    next: AtomicU64,
    reading: Once,
    answers: broadcast::Sender<Answer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    number: u64,
    allowed: bool,
}

impl Asker {
    /// For these tools: those that are named may always run, for the others the terminal is asked if it may be
    /// and there is one. None, if no tool needs it.
    pub(super) fn of(
        tools: &ProgramTools,
        always: &[String],
        may_ask: bool,
    ) -> Result<Option<Self>, Failure> {
        let tools = tools.list();
        if let Some(unknown) = always.iter().find(|it| !tools.iter().any(|tool| tool.name().as_str() == *it))
        {
            return Err(Failure::Usage(format!("--yes {unknown:?}: there is no tool of that name")));
        }
        let needs = tools.iter().filter(|it| it.tool_options().effective_consent() != Consent::Never);
        let needs: Vec<_> = needs.map(|tool| tool.name().to_string()).collect();
        let open = needs.iter().find(|name| !always.contains(name));
        if let Some(name) = open.filter(|_| !may_ask || !io::stdin().is_terminal()) {
            let way =
                if may_ask { "start this at a terminal, where you are asked each time, or " } else { "" };
            return Err(Failure::Usage(format!(
                "{name:?} needs a person's consent, and nobody can be asked: {way}let it always run with --yes {name}"
            )));
        }
        let asked =
            Asked { next: AtomicU64::new(1), reading: Once::new(), answers: broadcast::Sender::new(ANSWERS) };
        Ok((!needs.is_empty()).then(|| Self { always: always.into(), asked: Arc::new(asked) }))
    }

    /// Asks, unless there is no need to. Dropped, the question is taken back.
    pub(super) async fn ask(self, request: ConsentRequest) -> bool {
        let tool = request.tool().name().as_str();
        if self.always.iter().any(|name| name == tool) {
            return true;
        }
        let number = self.asked.next.fetch_add(1, Relaxed);
        let mut answers = self.asked.answers.subscribe();
        self.asked.clone().read();
        let (caller, arguments) = (request.caller(), text::json(&request.arguments().to_json()));
        hint(&format!("{caller} wants to run {tool} with {arguments}"));
        let seconds = request.time_left().as_secs();
        hint(&format!(
            "type `yes {number}` to allow it, `no {number}` to refuse; silence for {seconds} s refuses"
        ));
        let mut open = Open { number, answered: false };
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

/// Tells when a question is taken back.
struct Open {
    number: u64,
    answered: bool,
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.answered {
            hint(&format!("{}: nobody waits for an answer any more", self.number));
        }
    }
}

impl Asked {
    /// Begins to read the terminal, in a thread that ends with it or with the process. Not before the first
    /// question: a program in the background that reads is stopped by its shell.
    fn read(self: Arc<Self>) {
        let this = Arc::clone(&self);
        self.reading.call_once(move || {
            let started = thread::Builder::new().name("consent".to_owned()).spawn(move || {
                for line in io::stdin().lock().lines().map_while(Result::ok) {
                    match answer(&line) {
                        // An error: no question is open, and so it is none's answer.
                        Some(answer) => drop(this.answers.send(answer)),
                        None if line.trim().is_empty() => {}
                        None => hint("type `yes` or `no` and the question's number"),
                    }
                }
            });
            if let Err(error) = started {
                hint(&format!("nobody can be asked: {error}"));
            }
        });
    }
}

/// What a line says: a word and a number.
fn answer(line: &str) -> Option<Answer> {
    let (word, number) = line.trim().split_once(' ').filter(|_| line.len() <= LONGEST)?;
    let allowed = match word {
        "yes" | "y" => true,
        "no" | "n" => false,
        _ => return None,
    };
    Some(Answer { number: number.trim().parse().ok()?, allowed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_its_question() {
        assert_eq!(answer("yes 3\r"), Some(Answer { number: 3, allowed: true }));
        assert_eq!(answer(" n  12 "), Some(Answer { number: 12, allowed: false }));
        for none in ["", "yes", "y", "3", "yes three", "yes -1", "yess 3", "yes 3 4", &"yes 1".repeat(20)] {
            assert_eq!(answer(none), None, "{none}");
        }
    }
}

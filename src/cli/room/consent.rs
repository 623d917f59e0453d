//! Asks for consent at the terminal before a tool runs that needs it.

use std::{
    io::{self, IsTerminal as _},
    sync::Arc,
};

use crate::cli::{
    room::grant::{Grant, Listed, offered},
    terminal::{
        failure::{Failure, hint},
        questions::{Terminal, Word},
        screen, text,
    },
};
use toolbridge::{Consent, ConsentRequest, Tool};

/// The largest arguments in a question, in bytes of JSON: a person allows only what is shown, and reads no more. Calls with
/// larger ones are refused.
const SHOWN_ARGUMENTS: usize = 16 << 10;

/// The person whose consent is asked before a tool runs that needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Asked {
    /// The person at the terminal, if standard input is one.
    Terminal,
    /// The person at the editor, by the command itself.
    Editor,
    Nobody,
}

/// Decides on consent for the tools that need it.
#[derive(Clone)]
pub(in crate::cli) struct ConsentPrompt {
    /// The tools that run without asking.
    always: Arc<[Grant]>,
    /// Whether a person can be asked.
    can_ask: bool,
    terminal: Arc<Terminal>,
}

impl ConsentPrompt {
    /// Returns the consent prompt for the tools of these sources: a tool that `yes` allows runs without asking, and somebody
    /// is asked about the others. Returns `None` if no tool needs consent now, and none that a server offers later could
    /// get it.
    pub(in crate::cli) fn of(
        sources: &[Listed],
        yes: &[String],
        asked: Asked,
    ) -> Result<Option<Self>, Failure> {
        Self::at(sources, yes, asked, io::stdin().is_terminal())
    }

    fn at(
        sources: &[Listed],
        yes: &[String],
        asked: Asked,
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
        let can_ask = match asked {
            Asked::Terminal => is_terminal,
            Asked::Editor => true,
            Asked::Nobody => false,
        };
        let needs = |tool: &&Tool| tool.tool_options().effective_consent() != Consent::Never;
        let mut open = tools.iter().filter(needs).filter(|tool| !always.iter().any(|it| it.allows(tool)));
        if let Some(tool) = open.next().filter(|_| !can_ask) {
            let name = tool.name();
            let alternative = match asked {
                Asked::Terminal => "run this at a terminal to be asked each time, or ",
                Asked::Editor | Asked::Nobody => "",
            };
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
        Ok(is_needed.then(|| Self { always, can_ask, terminal: Arc::clone(Terminal::shared()) }))
    }

    /// Returns whether a tool runs without a question.
    pub(in crate::cli) fn allows(&self, tool: &Tool) -> bool {
        self.always.iter().any(|grant| grant.allows(tool))
    }

    /// Asks for consent at the terminal, unless the tool may always run. Dropping the future withdraws the question.
    pub(in crate::cli) async fn ask(self, request: ConsentRequest) -> bool {
        if self.allows(request.tool()) {
            return true;
        }
        // A server may offer further tools later.
        if !self.can_ask {
            return false;
        }
        let tool = request.tool().name().as_str();
        let mut question = self.terminal.ask();
        let number = question.number();
        let arguments = text::json(&request.arguments().to_json());
        let mut asked = screen::labelled(
            &format!("question {number}: run {tool} for "),
            &format!("{} with", request.caller()),
        );
        if arguments.len() > SHOWN_ARGUMENTS {
            screen::print(&asked);
            hint(&format!(
                "question {number} is refused: its arguments have {} bytes, and at most {SHOWN_ARGUMENTS} are shown",
                arguments.len()
            ));
            question.close();
            return false;
        }
        asked.extend(screen::foreign(&arguments));
        let seconds = request.time_left().as_secs();
        let short = if question.is_only() { " (or just y or n)" } else { "" };
        let choices = format!(
            "type `yes {number}` to allow it or `no {number}` to refuse it{short}; it is refused after {seconds} s"
        );
        question.print(asked, vec![choices]);
        loop {
            match question.answer().await {
                Some(Word::Yes) => break true,
                Some(Word::Option(_) | Word::Text(_)) => {
                    question.again();
                    question.remark(None);
                }
                Some(Word::No) | None => break false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn person_can_be_asked_about_tools_that_a_server_offers_later() {
        let server = || Listed { server: Some("files".to_owned()), tools: Vec::new(), is_missing: false };
        let is_set = |sources: &[Listed], yes: &[&str], is_terminal| {
            let yes: Vec<String> = yes.iter().map(|it| (*it).to_owned()).collect();
            let Ok(prompt) = ConsentPrompt::at(sources, &yes, Asked::Terminal, is_terminal) else {
                panic!("{yes:?}")
            };
            prompt.is_some()
        };
        assert!(is_set(&[server()], &[], true), "nobody is asked");
        assert!(is_set(&[server()], &["files.*"], false), "what is allowed does not run");
        // Otherwise the tools are left out, with this reason.
        assert!(!is_set(&[server()], &[], false));
        assert!(!is_set(&[Listed { server: None, tools: Vec::new(), is_missing: false }], &[], true));
    }
}

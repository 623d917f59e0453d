//! Holds the program of a server or an agent: how it is found, named, and given its environment.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use toml::Spanned;

use super::SourceError;
use crate::{
    process::{Command, CommandError},
    tools_file::{Entry, ToolsFileError},
};

/// A program, as its user has set it.
#[derive(Clone)]
pub(in crate::adapter) struct Program {
    /// A program that could not be found is an error of the start.
    command: Result<Command, CommandError>,
    /// The variables of this process that it gets.
    inherits: Vec<String>,
}

impl Program {
    /// Returns a name, and the program that a person names with its arguments.
    pub(in crate::adapter) fn of_words(words: impl IntoIterator<Item = impl Into<String>>) -> (String, Self) {
        let words: Vec<String> = words.into_iter().map(Into::into).collect();
        let command = match words.split_first() {
            Some((program, arguments)) => {
                Command::find(program).map(|command| arguments.iter().fold(command, Command::arg))
            }
            None => Err(CommandError::Empty),
        };
        (name_of(&words), Self::new(command.map(Command::inherit_user)))
    }

    /// Returns a name, and the program from the line that a person would type into a shell.
    pub(in crate::adapter) fn of_line(line: &str) -> (String, Self) {
        let name = name_of(&shlex::split(line).unwrap_or_default());
        (name, Self::new(Command::from_line(line).map(Command::inherit_user)))
    }

    /// Returns a name, and the program of a command.
    pub(in crate::adapter) fn of_command(command: Command) -> (String, Self) {
        (stem(&command.program().to_string_lossy()).to_owned(), Self::new(Ok(command)))
    }

    /// Reads the `command`, the `cwd` and the `env` of an entry.
    pub(in crate::adapter) fn of_entry(
        at: &Entry<'_>,
        command: Spanned<Vec<String>>,
        cwd: Option<&Spanned<PathBuf>>,
        env: BTreeMap<String, Spanned<toml::Value>>,
    ) -> Result<Self, ToolsFileError> {
        let has_own = !env.is_empty();
        let (command, arguments, inherits) = at.program(command, cwd, env)?;
        let command = arguments.fold(command, Command::arg);
        let command = if has_own { command } else { command.inherit_user() };
        Ok(Self { command: Ok(command), inherits })
    }

    fn new(command: Result<Command, CommandError>) -> Self {
        Self { command, inherits: Vec::new() }
    }

    /// Changes the command.
    pub(in crate::adapter) fn set(&mut self, change: impl FnOnce(Command) -> Command) {
        if let Ok(command) = &mut self.command {
            *command = change(command.clone());
        }
    }

    /// Passes on a variable of this process.
    pub(in crate::adapter) fn inherit(&mut self, variable: String) {
        self.inherits.push(variable);
    }

    /// Returns the command.
    ///
    /// # Errors
    /// There is no such program, or it would get a variable of LiveKit: programs of other systems get no key or token of the
    /// room.
    pub(in crate::adapter) fn command(&self, origin: &str) -> Result<Command, SourceError> {
        let command =
            self.command.clone().map_err(|error| SourceError::setting(origin, error.to_string()))?;
        self.inherits.iter().try_fold(command, |command, variable| {
            if !variable.starts_with("LIVEKIT_") {
                return Ok(command.inherit(variable));
            }
            let reason = "is not passed on, because it may give access to the room; set it with `env`";
            Err(SourceError::setting(origin, format!("{variable} {reason}")))
        })
    }
}

/// Returns a name for what a command starts: the package or script, if an interpreter or a package runner starts it.
fn name_of(words: &[String]) -> String {
    let Some((program, arguments)) = words.split_first() else { return String::new() };
    let program = stem(program);
    let is_runner = matches!(program, "npx" | "bunx" | "uvx" | "node" | "deno" | "python" | "python3" | "sh");
    let started = arguments.iter().find(|it| !it.starts_with('-')).filter(|it| is_runner && is_path(it));
    started.map_or(program, |started| last_name(started)).to_owned()
}

/// Whether a word is a package or a path. Any other, such as code after `-c`, may hold a secret.
fn is_path(word: &str) -> bool {
    word.len() <= 256 && word.chars().all(|it| it.is_alphanumeric() || "@/._-".contains(it))
}

/// Returns the last part of a path that says something: `files` of `files/dist/index.js`. The version of a package is
/// cut.
fn last_name(path: &str) -> &str {
    let part = |part: &'_ str| {
        let name = part.rsplit_once('@').map_or(part, |(name, _)| name);
        !matches!(
            stem(name),
            "" | "index" | "main" | "server" | "dist" | "build" | "src" | "bin" | "lib" | ".."
        )
    };
    let found = path.split('/').rev().find(|it| part(it)).unwrap_or(path);
    stem(found.rsplit_once('@').map_or(found, |(name, _)| name))
}

fn stem(path: &str) -> &str {
    Path::new(path).file_stem().and_then(|it| it.to_str()).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_is_named_after_its_package() {
        for (line, name) in [
            ("npx -y @modelcontextprotocol/server-everything@2026.8.31 stdio", "server-everything"),
            ("npx -y @zed-industries/codex-acp@0.16.0", "codex-acp"),
            ("npx @modelcontextprotocol/server-everything", "server-everything"),
            ("uvx mcp-server-time", "mcp-server-time"),
            ("/opt/tools/lamp --fast", "lamp"),
            ("gemini --experimental-acp", "gemini"),
            ("node files/build/index.js", "files"),
            ("node index.js", "index"),
            ("python3 -u tests/agent.py", "agent"),
            ("sh -c 'KEY=hunter2 exec lamp'", "sh"),
            ("python3 -c 'print(1)'", "python3"),
            ("", ""),
        ] {
            assert_eq!(Program::of_line(line).0, name, "{line}");
        }
    }

    #[test]
    fn sec_x2_variable_that_gives_access_to_the_room_is_not_passed_on() {
        let (_, mut program) = Program::of_words(["cat"]);
        program.inherit("LANG".to_owned());
        assert!(program.command("agent \"a\"").is_ok());
        program.inherit("LIVEKIT_API_SECRET".to_owned());
        let refused = program.command("agent \"a\"").unwrap_err().to_string();
        assert!(refused.starts_with("agent \"a\": LIVEKIT_API_SECRET is not passed on"), "{refused}");
    }
}

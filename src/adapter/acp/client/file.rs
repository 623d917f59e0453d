//! Reads the agents of a `tools.toml`: its `[[acp]]` sections.

use std::{ops::Range, path::Path};

use toml::Spanned;

use super::{AcpCommand, AcpError, settings::check_kind};
use crate::{
    Consent,
    process::{Command, check_program},
    programs::ProgramsError,
    tools_file::{self, AcpEntry, Asks, TomlSource, ToolsFile},
};

/// Returns the agents of a `tools.toml` file, in its order.
///
/// Its rules are those of [`ProgramTools::from_file`](crate::programs::ProgramTools::from_file): another user must not
/// be able to change the file or a program that it names, and a program is an absolute path.
///
/// ```toml
/// [[acp]]
/// name = "coder"                      # the name of its tool
/// command = ["/usr/local/bin/coder", "--acp"]
/// description = "Changes the program of the lamp."
/// env = { LANG = "C", HOME = true }   # HOME is inherited; without `env` as for `stdio`
/// cwd = "/srv/lamp"                   # the folder that it works in; default: the folder of the file
/// consent = "once"                    # never, once, always; default: once
/// timeout = "10m"                     # default: 10 min
/// allow_fs = "/srv/lamp"              # it reads and writes files of this folder through its client; default: none
/// allow_terminal = true               # it runs commands through its client, after a yes to each; default: none
/// allow_kinds = ["read", "search"]    # calls of these kinds are allowed without a question; default: none
/// reject_kinds = ["delete"]           # calls of these kinds are refused without a question; default: none
/// ```
///
/// The kind of a call is what the agent says of it: see [`AcpCommand::allow_kind`].
///
/// # Errors
/// The file cannot be read, or an entry is invalid.
pub fn from_file(path: impl AsRef<Path>) -> Result<Vec<AcpCommand>, AcpError> {
    let file = ToolsFile::read(path.as_ref()).map_err(ProgramsError::from)?;
    agents(file, |program| check_program(program).map_err(|error| ProgramsError::from(error).into()))
}

fn agents(
    file: ToolsFile,
    check: impl Fn(&Path) -> Result<(), AcpError>,
) -> Result<Vec<AcpCommand>, AcpError> {
    let place = file.place;
    file.sections.acp.into_iter().map(|entry| agent(entry, &place, &check)).collect()
}

fn agent(
    entry: Spanned<AcpEntry>,
    place: &TomlSource,
    check: impl Fn(&Path) -> Result<(), AcpError>,
) -> Result<AcpCommand, AcpError> {
    let entry = entry.into_inner();
    let name = entry.name.get_ref().clone();
    let wrong = |span: Range<usize>, reason: String| AcpError::Entry {
        agent: name.clone(),
        line: place.line(&span),
        reason,
    };
    let span = entry.command.span();
    let folder = place.working_folder(entry.cwd.as_ref().map(|it| it.get_ref().as_path()));
    let folder = folder.and_then(|folder| std::path::absolute(&folder).map_err(|error| error.to_string()));
    let folder = folder.map_err(|reason| wrong(span.clone(), reason))?;
    let mut words = entry.command.into_inner().into_iter();
    let program = words.next().unwrap_or_default();
    let command = Command::new(program).map_err(|error| wrong(span, error.to_string()))?;
    check(command.program())?;
    let command = words.fold(command, Command::arg);
    let command = if entry.env.is_empty() { command.inherit_user() } else { command };
    let mut agent = AcpCommand::new(name.clone(), Ok(command)).folder(folder);
    for (variable, value) in entry.env {
        let span = value.span();
        let read = tools_file::variable(&variable, value.get_ref()).map_err(|reason| wrong(span, reason))?;
        agent = match read {
            Some(value) => agent.env(variable, value),
            None => agent.inherit(variable),
        };
    }
    if let Some(description) = entry.description {
        agent = agent.description(description);
    }
    if let Some(asks) = entry.consent {
        agent = agent.consent(match asks {
            Asks::Never => Consent::Never,
            Asks::Once => Consent::OncePerSession,
            Asks::Always => Consent::Always,
        });
    }
    if let Some(timeout) = entry.timeout {
        let limit = tools_file::timeout(timeout.get_ref()).map_err(|reason| wrong(timeout.span(), reason))?;
        agent = agent.timeout(limit);
    }
    if let Some(files) = entry.allow_fs {
        let span = files.span();
        let folder = place.working_folder(Some(files.get_ref())).map_err(|reason| wrong(span, reason))?;
        agent = agent.allow_files(folder);
    }
    for kind in entry.allow_kinds {
        check_kind(kind.get_ref())
            .map_err(|reason| wrong(kind.span(), format!("`allow_kinds`: {reason}")))?;
        agent = agent.allow_kind(kind.into_inner());
    }
    for kind in entry.reject_kinds {
        check_kind(kind.get_ref())
            .map_err(|reason| wrong(kind.span(), format!("`reject_kinds`: {reason}")))?;
        agent = agent.reject_kind(kind.into_inner());
    }
    Ok(if entry.allow_terminal { agent.allow_commands() } else { agent })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<AcpCommand>, AcpError> {
        agents(ToolsFile::parse(text, "/")?, |_| Ok(()))
    }

    #[test]
    fn all_keys_are_understood() {
        let agents = read(
            "[[acp]]\nname = \"coder\"\ncommand = [\"/bin/cat\", \"-u\"]\ndescription = \"d\"\nenv = { LANG = \"C\", HOME = true }\n\
             cwd = \"tmp\"\nconsent = \"always\"\ntimeout = \"2m\"\nallow_fs = \"tmp\"\nallow_terminal = true\n\
             allow_kinds = [\"read\", \"search\"]\nreject_kinds = [\"delete\"]\n",
        );
        assert_eq!(agents.unwrap().len(), 1);
    }

    #[test]
    fn wrong_entries_are_named_with_their_line() {
        for (more, reason) in [
            ("command = [\"cat\"]", "line 3: "),
            ("command = []", "line 3: "),
            ("command = [\"/bin/cat\"]\ntimeout = \"2\"", "line 4: `timeout` must be"),
            ("command = [\"/bin/cat\"]\nenv = { A = 1 }", "line 4: `env.A` must be"),
            (
                "command = [\"/bin/cat\"]\nallow_kinds = [\"read\",\n\"sing\"]",
                "line 5: `allow_kinds`: \"sing\" is not a kind of calls; the kinds are read, edit",
            ),
            ("command = [\"/bin/cat\"]\nreject_kinds = [\"\"]", "line 4: `reject_kinds`: \"\" is not"),
            (
                "command = [\"/bin/cat\"]\nallow_fs = \"/no/such/folder\"",
                "line 4: /no/such/folder is not a folder",
            ),
        ] {
            let error = read(&format!("[[acp]]\nname = \"a\"\n{more}\n")).unwrap_err().to_string();
            assert!(error.starts_with(&format!("agent \"a\", {reason}")), "{more}: {error}");
        }
        assert!(read("[[acp]]\nname = \"a\"\ncommands = []\n").is_err());
    }
}

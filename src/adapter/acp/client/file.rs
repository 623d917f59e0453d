//! Reads the agents of a `tools.toml`: its `[[acp]]` sections.

use std::path::Path;

use toml::Spanned;

use super::{
    AcpCommand, KIND,
    settings::{Kinds, check_kind},
};
use crate::{
    adapter::source::program::Program,
    programs::ToolsFileError,
    tools_file::{AcpEntry, TomlSource, ToolsFile},
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
pub fn from_file(path: impl AsRef<Path>) -> Result<Vec<AcpCommand>, ToolsFileError> {
    agents(ToolsFile::read(path.as_ref())?)
}

fn agents(file: ToolsFile) -> Result<Vec<AcpCommand>, ToolsFileError> {
    file.sections.acp.into_iter().map(|entry| agent(entry, &file.place)).collect()
}

fn agent(entry: Spanned<AcpEntry>, place: &TomlSource) -> Result<AcpCommand, ToolsFileError> {
    let (span, entry) = (entry.span(), entry.into_inner());
    let at = place.entry(KIND, &entry.name, span);
    let folder = at.folder(entry.cwd.as_ref())?;
    let program = Program::of_entry(&at, entry.command, entry.cwd.as_ref(), entry.env)?;
    let limit = at.timeout(entry.timeout)?;
    let files = entry.allow_fs.map(|files| at.folder(Some(&files))).transpose()?;
    let kinds = |key: &str, kinds: Vec<Spanned<String>>| {
        let checked = kinds.into_iter().map(|kind| match check_kind(kind.get_ref()) {
            Ok(()) => Ok(kind.into_inner()),
            Err(reason) => Err(at.error_at(kind.span(), format!("`{key}`: {reason}"))),
        });
        checked.collect::<Result<Vec<_>, _>>()
    };
    let allowed = kinds("allow_kinds", entry.allow_kinds)?;
    let rejected = kinds("reject_kinds", entry.reject_kinds)?;
    Ok(AcpCommand::new((entry.name, program)).with(|settings| {
        settings.folder = folder;
        settings.description = entry.description;
        settings.consent = entry.consent.map_or(settings.consent, Into::into);
        settings.limit = limit.unwrap_or(settings.limit);
        settings.files = files;
        settings.runs_commands = entry.allow_terminal;
        settings.kinds = Kinds { allowed, rejected };
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<AcpCommand>, ToolsFileError> {
        agents(ToolsFile::parse(text, "/")?)
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

//! Reads the toolsets of a `tools.toml`: its `[[rap]]` sections.

use std::{ops::Range, path::Path};

use toml::Spanned;

use super::{RapError, RapToolset, toolset};
use crate::{
    Consent,
    programs::ProgramsError,
    tools_file::{self, Asks, RapEntry, TomlSource, ToolsFile},
};

/// Returns the toolsets of a `tools.toml` file, in its order. [`toolsets`](super::toolsets) starts them.
///
/// The rule of [`ProgramTools::from_file`](crate::programs::ProgramTools::from_file) holds: another user must not be able
/// to change the file.
///
/// ```toml
/// [[rap]]
/// name = "builds"
/// url = "https://tools.example.com"   # before /.well-known/rap-toolset
/// callback = "192.0.2.7:8099"         # tools answer there; default: a free port of 127.0.0.1
/// callback_url = "https://me.example" # how tools reach it, behind a proxy; default: http and the address
/// bearer_env = "BUILDS_TOKEN"         # the variable that holds the bearer token
/// hosts = ["10.0.0.7:8080"]           # of the endpoint and of answers, besides the toolset's own
/// user_id = "ada"                     # sent with each call; default: none
/// prefix = "builds"                   # its tools are `builds.start`, `builds.stop`, …
/// allow = ["start", "get_*"]          # default: all
/// deny = ["get_secret"]
/// consent = "once"                    # never, once, always; default: always for a destructive tool, else once
/// timeout = "2m"                      # default: the caller's
/// trust_hints = true                  # its read-only tools run without a question
/// ```
///
/// # Errors
/// The file cannot be read, or an entry is invalid.
pub fn from_file(path: impl AsRef<Path>) -> Result<Vec<RapToolset>, RapError> {
    read(ToolsFile::read(path.as_ref()).map_err(ProgramsError::from)?)
}

fn read(file: ToolsFile) -> Result<Vec<RapToolset>, RapError> {
    let place = file.place;
    file.sections.rap.into_iter().map(|entry| of_entry(entry, &place)).collect()
}

fn of_entry(entry: Spanned<RapEntry>, place: &TomlSource) -> Result<RapToolset, RapError> {
    let entry = entry.into_inner();
    let name = entry.name.into_inner();
    let wrong = |span: Range<usize>, reason: String| RapError::Entry {
        toolset: name.clone(),
        line: place.line(&span),
        reason,
    };
    let mut set = toolset(entry.url).name(name.clone()).deny(entry.deny);
    if let Some(callback) = &entry.callback {
        set = set.callback(callback.get_ref());
        set.callback_address_form().map_err(|reason| wrong(callback.span(), reason))?;
    }
    for host in entry.hosts {
        set = set.host(host);
    }
    if let Some(url) = entry.callback_url {
        set = set.callback_url(url);
    }
    if let Some(variable) = entry.bearer_env {
        set = set.bearer_env(variable);
    }
    if let Some(user) = entry.user_id {
        set = set.user_id(user);
    }
    if let Some(prefix) = entry.prefix {
        set = set.prefix(prefix);
    }
    if let Some(allow) = entry.allow {
        set = set.allow(allow);
    }
    if let Some(asks) = entry.consent {
        set = set.consent(match asks {
            Asks::Never => Consent::Never,
            Asks::Once => Consent::OncePerSession,
            Asks::Always => Consent::Always,
        });
    }
    if let Some(timeout) = entry.timeout {
        let limit = tools_file::timeout(timeout.get_ref()).map_err(|reason| wrong(timeout.span(), reason))?;
        set = set.timeout(limit);
    }
    Ok(if entry.trust_hints { set.trust_hints() } else { set })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<RapToolset>, RapError> {
        read(ToolsFile::parse(text, "/")?)
    }

    #[test]
    fn all_keys_are_understood() {
        let sets = parse(
            "[[rap]]\nname = \"builds\"\nurl = \"https://tools.example.com\"\ncallback = \"192.0.2.7:8099\"\n\
             callback_url = \"https://me.example\"\nbearer_env = \"T\"\nhosts = [\"10.0.0.7:8080\"]\nuser_id = \"ada\"\n\
             prefix = \"b\"\nallow = [\"a\"]\ndeny = [\"d\"]\nconsent = \"always\"\ntimeout = \"2m\"\ntrust_hints = true\n\
             [[rap]]\nname = \"s\"\nurl = \"http://127.0.0.1:1\"\n",
        );
        assert_eq!(sets.unwrap().iter().map(|it| &*it.name).collect::<Vec<_>>(), ["builds", "s"]);
    }

    #[test]
    fn wrong_entries_are_named_with_their_line() {
        let refused = |more: &str| {
            parse(&format!("[[rap]]\nname = \"s\"\nurl = \"https://x\"\n{more}\n")).unwrap_err().to_string()
        };
        assert!(refused("callback = \"here\"").starts_with("toolset \"s\", line 4: it is not an address"));
        assert!(refused("timeout = \"2\"").starts_with("toolset \"s\", line 4: `timeout` must be"));
        assert!(refused("command = []").starts_with("line 4: unknown field `command`"));
        assert!(parse("[[rap]]\nname = \"s\"\n").unwrap_err().to_string().contains("missing field `url`"));
    }
}

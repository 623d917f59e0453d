//! Reads the toolsets of a `tools.toml`: its `[[rap]]` sections.

use std::path::Path;

use toml::Spanned;

use super::{KIND, RapToolset, toolset};
use crate::{
    adapter::{
        filter::Filter,
        source::policy::{Bearer, Policy},
    },
    programs::ToolsFileError,
    tools_file::{RapEntry, TomlSource, ToolsFile},
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
pub fn from_file(path: impl AsRef<Path>) -> Result<Vec<RapToolset>, ToolsFileError> {
    read(ToolsFile::read(path.as_ref())?)
}

fn read(file: ToolsFile) -> Result<Vec<RapToolset>, ToolsFileError> {
    file.sections.rap.into_iter().map(|entry| of_entry(entry, &file.place)).collect()
}

fn of_entry(entry: Spanned<RapEntry>, place: &TomlSource) -> Result<RapToolset, ToolsFileError> {
    let (span, entry) = (entry.span(), entry.into_inner());
    let at = place.entry(KIND, &entry.name, span);
    let mut set = toolset(entry.url).name(entry.name);
    if let Some(callback) = entry.callback {
        set = set.callback(callback.get_ref());
        set.callback_address_form().map_err(|reason| at.error_at(callback.span(), reason))?;
    }
    set.callback_url = entry.callback_url;
    set.bearer = entry.bearer_env.map(Bearer::Variable);
    set.hosts = entry.hosts;
    set.user_id = entry.user_id;
    set.policy = Policy {
        prefix: entry.prefix,
        filter: Filter::new(entry.allow, entry.deny),
        consent: entry.consent.map(Into::into),
        timeout: at.timeout(entry.timeout)?,
        trusts_hints: entry.trust_hints,
    };
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<RapToolset>, ToolsFileError> {
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

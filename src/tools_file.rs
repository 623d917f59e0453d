//! Reads `tools.toml`, as its only reader: the file, its sections, the keys that several sections have, and the lines that
//! errors name.
//!
//! The module that offers an entry's tools interprets the entry.
#![cfg_attr(
    not(all(feature = "acp", feature = "mcp", feature = "rap")),
    expect(dead_code, reason = "all sections are known, so that a file is read with any features")
)]

use std::{
    collections::BTreeMap,
    error::Error,
    ops::Range,
    path::{Path, PathBuf},
    time::Duration,
    vec,
};

use serde::Deserialize;
use toml::Spanned;

use crate::{
    process::{Command, TrustError, check_program, read_trusted},
    tool::{Consent, RegisterError},
};

/// The largest `tools.toml`, in bytes: four times the limit for all tools of one participant.
const MAX_FILE: u64 = 1 << 20;

/// A `tools.toml` that was read.
pub(crate) struct ToolsFile {
    pub(crate) sections: Sections,
    pub(crate) place: TomlSource,
}

/// The sections of a file. Any other is an error.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sections {
    /// `[[tools]]`: programs as tools.
    #[serde(default)]
    pub(crate) tools: Vec<Spanned<ProgramEntry>>,
    /// `[[mcp]]`: servers of the Model Context Protocol.
    #[serde(default)]
    pub(crate) mcp: Vec<Spanned<McpEntry>>,
    /// `[[rap]]`: toolsets of the Reactive Agent Protocol.
    #[serde(default)]
    pub(crate) rap: Vec<Spanned<RapEntry>>,
    /// `[[acp]]`: agents of the Agent Client Protocol.
    #[serde(default)]
    pub(crate) acp: Vec<Spanned<AcpEntry>>,
}

/// One `[[rap]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RapEntry {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) callback: Option<Spanned<String>>,
    pub(crate) callback_url: Option<String>,
    pub(crate) bearer_env: Option<String>,
    #[serde(default)]
    pub(crate) hosts: Vec<String>,
    pub(crate) user_id: Option<String>,
    pub(crate) prefix: Option<String>,
    pub(crate) allow: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) deny: Vec<String>,
    pub(crate) consent: Option<Asks>,
    pub(crate) timeout: Option<Spanned<String>>,
    #[serde(default)]
    pub(crate) trust_hints: bool,
}

/// One `[[acp]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AcpEntry {
    pub(crate) name: String,
    pub(crate) command: Spanned<Vec<String>>,
    pub(crate) description: Option<String>,
    pub(crate) cwd: Option<Spanned<PathBuf>>,
    #[serde(default)]
    pub(crate) env: BTreeMap<String, Spanned<toml::Value>>,
    pub(crate) consent: Option<Asks>,
    pub(crate) timeout: Option<Spanned<String>>,
    pub(crate) allow_fs: Option<Spanned<PathBuf>>,
    #[serde(default)]
    pub(crate) allow_terminal: bool,
    #[serde(default)]
    pub(crate) allow_kinds: Vec<Spanned<String>>,
    #[serde(default)]
    pub(crate) reject_kinds: Vec<Spanned<String>>,
}

/// One `[[mcp]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct McpEntry {
    pub(crate) name: String,
    pub(crate) command: Option<Spanned<Vec<String>>>,
    pub(crate) url: Option<Spanned<String>>,
    pub(crate) bearer_env: Option<Spanned<String>>,
    pub(crate) cwd: Option<Spanned<PathBuf>>,
    #[serde(default)]
    pub(crate) env: BTreeMap<String, Spanned<toml::Value>>,
    pub(crate) prefix: Option<String>,
    pub(crate) allow: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) deny: Vec<String>,
    pub(crate) consent: Option<Asks>,
    pub(crate) timeout: Option<Spanned<String>>,
    #[serde(default)]
    pub(crate) trust_hints: bool,
}

/// One `[[tools]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProgramEntry {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) command: Spanned<Vec<String>>,
    pub(crate) input_schema: Option<Spanned<toml::Value>>,
    pub(crate) timeout: Option<Spanned<String>>,
    pub(crate) consent: Option<Asks>,
    #[serde(default)]
    pub(crate) destructive: bool,
    #[serde(default)]
    pub(crate) idempotent: bool,
    pub(crate) cwd: Option<Spanned<PathBuf>>,
    #[serde(default)]
    pub(crate) env: BTreeMap<String, Spanned<toml::Value>>,
}

/// When a person is asked before a tool runs.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Asks {
    Never,
    Once,
    Always,
}

impl From<Asks> for Consent {
    fn from(asks: Asks) -> Self {
        match asks {
            Asks::Never => Self::Never,
            Asks::Once => Self::OncePerSession,
            Asks::Always => Self::Always,
        }
    }
}

/// Where the entries were read.
pub(crate) struct TomlSource {
    /// The text, for the lines that errors name.
    text: String,
    /// The folder that relative paths start at.
    folder: PathBuf,
    /// Whether another user must not be able to change the programs.
    checks_programs: bool,
}

/// One entry while it is interpreted.
pub(crate) struct Entry<'a> {
    place: &'a TomlSource,
    /// What errors name: the kind of the entry, and its name.
    origin: String,
    span: Range<usize>,
}

/// Why a `tools.toml` cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolsFileError {
    /// The file cannot be read, or another user could have changed it or one of its programs.
    #[error(transparent)]
    Untrusted(#[from] TrustError),
    /// The text is not valid TOML, or has an unknown key or value.
    #[error("line {line}: {reason}")]
    Toml {
        /// The line, counted from 1.
        line: usize,
        /// What is wrong, in one line.
        reason: String,
        /// The parser's error. It does not quote the file, which may set a secret in the environment.
        source: Box<dyn Error + Send + Sync>,
    },
    /// An entry is invalid.
    #[error("{origin}, line {line}: {reason}")]
    Entry {
        /// The entry, as in `tool "get_weather"` and `MCP server "files"`.
        origin: String,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong, in words: this check is this crate's own.
        reason: String,
    },
    /// The name of a program's tool is invalid or used twice.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

impl ToolsFile {
    /// Reads a file unless another user could have changed it. Its programs are checked in the same way, entry by entry.
    pub(crate) fn read(path: &Path) -> Result<Self, ToolsFileError> {
        let (text, folder) = read_trusted(path, MAX_FILE)?;
        Self::of(TomlSource { text, folder, checks_programs: true })
    }

    /// Parses the text of a file; relative folders start at `folder`. Who could change the programs is not checked.
    pub(crate) fn parse(text: impl Into<String>, folder: impl Into<PathBuf>) -> Result<Self, ToolsFileError> {
        Self::of(TomlSource { text: text.into(), folder: folder.into(), checks_programs: false })
    }

    fn of(place: TomlSource) -> Result<Self, ToolsFileError> {
        let sections = toml::from_str(&place.text).map_err(|mut error: toml::de::Error| {
            let line = place.line(&error.span().unwrap_or_default());
            // Without its input the error does not quote the line, which may set a secret in the environment.
            error.set_input(None);
            ToolsFileError::Toml { line, reason: in_words(error.message()), source: error.into() }
        })?;
        Ok(Self { sections, place })
    }
}

/// Returns a message with TOML's names of types in place of the deserializer's.
fn in_words(message: &str) -> String {
    message.replace("expected a sequence", "expected a list").replace("expected a map", "expected a table")
}

impl TomlSource {
    /// Returns what interprets the entry of this kind and name.
    pub(crate) fn entry(&self, kind: &str, name: &str, span: Range<usize>) -> Entry<'_> {
        Entry { place: self, origin: format!("{kind} {name:?}"), span }
    }

    /// Returns the line of the text, counted from 1, where the span begins.
    fn line(&self, span: &Range<usize>) -> usize {
        self.text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count() + 1
    }
}

impl Entry<'_> {
    /// Returns the error that the entry as a whole is wrong.
    pub(crate) fn error(&self, reason: impl Into<String>) -> ToolsFileError {
        self.error_at(self.span.clone(), reason)
    }

    /// Returns the error that what is written there is wrong.
    pub(crate) fn error_at(&self, span: Range<usize>, reason: impl Into<String>) -> ToolsFileError {
        let (origin, line) = (self.origin.clone(), self.place.line(&span));
        ToolsFileError::Entry { origin, line, reason: reason.into() }
    }

    /// Reads a `timeout`.
    pub(crate) fn timeout(&self, text: Option<Spanned<String>>) -> Result<Option<Duration>, ToolsFileError> {
        let read = |text: Spanned<String>| {
            timeout(text.get_ref()).map_err(|reason| self.error_at(text.span(), reason))
        };
        text.map(read).transpose()
    }

    /// Returns the folder that a key names. Without it, this is the folder of the file.
    pub(crate) fn folder(&self, key: Option<&Spanned<PathBuf>>) -> Result<PathBuf, ToolsFileError> {
        let own = &self.place.folder;
        let folder = key.map_or_else(|| own.clone(), |key| own.join(key.get_ref()));
        if folder.is_dir() {
            return Ok(folder);
        }
        let span = key.map_or_else(|| self.span.clone(), Spanned::span);
        Err(self.error_at(span, format!("{} is not a folder", folder.display())))
    }

    /// Reads `command`, `cwd` and `env`. Returns the program in its folder and with the variables that are set, its arguments,
    /// and the variables that are inherited.
    pub(crate) fn program(
        &self,
        command: Spanned<Vec<String>>,
        cwd: Option<&Spanned<PathBuf>>,
        env: BTreeMap<String, Spanned<toml::Value>>,
    ) -> Result<(Command, vec::IntoIter<String>, Vec<String>), ToolsFileError> {
        let span = command.span();
        let folder = self.folder(cwd)?;
        let mut words = command.into_inner().into_iter();
        let program = words.next().ok_or_else(|| self.error_at(span.clone(), "`command` is empty"))?;
        let command = Command::new(program).map_err(|error| self.error_at(span, error.to_string()))?;
        if self.place.checks_programs {
            check_program(command.program())?;
        }
        let (mut command, mut inherits) = (command.folder(folder), Vec::new());
        for (name, value) in env {
            match variable(&name, value.get_ref()).map_err(|reason| self.error_at(value.span(), reason))? {
                Some(value) => command = command.env(name, value),
                None => inherits.push(name),
            }
        }
        Ok((command, words, inherits))
    }
}

/// Reads a `timeout`: a whole number and its unit.
fn timeout(text: &str) -> Result<Duration, String> {
    let read = || {
        let unit = text.find(|it: char| !it.is_ascii_digit())?;
        let number: u64 = text[..unit].parse().ok().filter(|number| *number > 0)?;
        let factor = match text[unit..].trim() {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        number.checked_mul(factor).map(Duration::from_millis)
    };
    read().ok_or_else(|| "`timeout` must be a number with a unit (ms, s, m or h), as in \"500ms\"".to_owned())
}

/// Reads one variable of an `env`: its value, or `None` if it is inherited.
fn variable(name: &str, value: &toml::Value) -> Result<Option<String>, String> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(format!("{name:?} is not a valid variable name"));
    }
    match value {
        toml::Value::String(text) if !text.contains('\0') => Ok(Some(text.clone())),
        toml::Value::Boolean(true) => Ok(None),
        _ => Err(format!(
            "`env.{name}` must be a string without NUL, or `true` to inherit it from this process"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_has_a_number_and_a_unit() {
        assert_eq!(timeout("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "5", "s", "-1s", "1.5s", "5 days", "99999999999999999999s", "18446744073709551615h"] {
            assert!(timeout(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn unknown_section_is_named_with_its_line() {
        let error =
            ToolsFile::parse("[[tools]]\nname = \"a\"\ndescription = \"\"\ncommand = []\n[[tool]]\n", "/");
        let Err(ToolsFileError::Toml { line: 5, reason, .. }) = error else { panic!("it was read") };
        assert!(reason.starts_with("unknown field `tool`"), "{reason}");
    }
}

//! Reads `tools.toml`, as its only reader: the file, its sections, and the lines that errors name.
//!
//! The module that offers an entry's tools interprets the entry.

use std::{
    collections::BTreeMap,
    error::Error,
    ops::Range,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use toml::Spanned;

use crate::process::{TrustError, read_trusted};

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
    #[cfg_attr(
        not(feature = "mcp"),
        expect(dead_code, reason = "known, so that a file is read with any features")
    )]
    pub(crate) mcp: Vec<Spanned<McpEntry>>,
    /// `[[rap]]`: toolsets of the Reactive Agent Protocol.
    #[serde(default)]
    #[cfg_attr(
        not(feature = "rap"),
        expect(dead_code, reason = "known, so that a file is read with any features")
    )]
    pub(crate) rap: Vec<Spanned<RapEntry>>,
    /// `[[acp]]`: agents of the Agent Client Protocol.
    #[serde(default)]
    #[cfg_attr(
        not(feature = "acp"),
        expect(dead_code, reason = "known, so that a file is read with any features")
    )]
    pub(crate) acp: Vec<Spanned<AcpEntry>>,
}

/// One `[[rap]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(
    not(feature = "rap"),
    expect(dead_code, reason = "known, so that a file is read with any features")
)]
pub(crate) struct RapEntry {
    pub(crate) name: Spanned<String>,
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
#[cfg_attr(
    not(feature = "acp"),
    expect(dead_code, reason = "known, so that a file is read with any features")
)]
pub(crate) struct AcpEntry {
    pub(crate) name: Spanned<String>,
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
#[cfg_attr(
    not(feature = "mcp"),
    expect(dead_code, reason = "known, so that a file is read with any features")
)]
pub(crate) struct McpEntry {
    pub(crate) name: Spanned<String>,
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
    pub(crate) name: Spanned<String>,
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

/// Where the entries were read: the text, for the lines that errors name, and the folder that relative paths start at.
pub(crate) struct TomlSource {
    text: String,
    folder: PathBuf,
}

/// Why a file cannot be read.
#[derive(Debug)]
pub(crate) enum ToolsFileError {
    /// Another user could have changed the file, or it cannot be read.
    Untrusted(TrustError),
    /// It is not TOML, or has an unknown key or value.
    Toml { line: usize, reason: String, source: Box<dyn Error + Send + Sync> },
}

impl ToolsFile {
    /// Reads a file unless another user could have changed it.
    pub(crate) fn read(path: &Path) -> Result<Self, ToolsFileError> {
        let (text, folder) = read_trusted(path, MAX_FILE).map_err(ToolsFileError::Untrusted)?;
        Self::parse(text, folder)
    }

    /// Parses the text of a file; relative folders start at `folder`.
    pub(crate) fn parse(text: impl Into<String>, folder: impl Into<PathBuf>) -> Result<Self, ToolsFileError> {
        let place = TomlSource { text: text.into(), folder: folder.into() };
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
    /// Returns the line of the text, counted from 1, where the span begins.
    pub(crate) fn line(&self, span: &Range<usize>) -> usize {
        self.text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count() + 1
    }

    /// Returns the folder that a `cwd` names. Without `cwd` it is the folder of the file.
    pub(crate) fn working_folder(&self, cwd: Option<&Path>) -> Result<PathBuf, String> {
        let folder = cwd.map_or_else(|| self.folder.clone(), |cwd| self.folder.join(cwd));
        if folder.is_dir() { Ok(folder) } else { Err(format!("{} is not a folder", folder.display())) }
    }
}

/// Reads a `timeout`: a whole number and its unit.
pub(crate) fn timeout(text: &str) -> Result<Duration, String> {
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
pub(crate) fn variable(name: &str, value: &toml::Value) -> Result<Option<String>, String> {
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

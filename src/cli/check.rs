//! `toolbridge check`: checks a recording for protocol violations.

use std::{
    io::{self, BufWriter, Write as _},
    path::PathBuf,
};

use clap::Args;

use super::{Failure, file, text};
use toolbridge::{
    Identity,
    recording::{Checker, Level},
};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Recording to check
    file: PathBuf,

    /// Print one JSON object: the findings, the numbers of errors and omitted findings, and any damage
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut checker = Checker::default();
    let (about, damage) = file::each(&arguments.file, |_, _, entry| {
        checker.push(entry);
        Ok(())
    })?;
    let checked = checker.finish();
    let mut out = BufWriter::new(io::stdout().lock());
    if arguments.json {
        let mut json = serde_json::to_value(&checked).map_err(Failure::failed)?;
        if let Some(damage) = &damage {
            json["damage"] = damage.as_str().into();
        }
        writeln!(out, "{}", text::json(&json))?;
    } else {
        for found in &checked.findings {
            let level = if found.level == Level::Error { "error" } else { "note " };
            let (at, who) = (
                found.at.since(about.begun).as_secs_f64(),
                text::plain(found.who.as_ref().map_or("", Identity::as_str)),
            );
            let what = text::plain(&found.text);
            writeln!(out, "{at:>10.6} #{:<6} {level} {:<20} {who:<16} {what}", found.entry, found.rule)?;
        }
        if checked.left_out > 0 {
            writeln!(out, "{} more findings omitted", checked.left_out)?;
        }
        let notes = checked.findings.len() as u64 + checked.left_out - checked.errors;
        writeln!(out, "{} errors, {notes} notes", checked.errors)?;
    }
    out.flush()?;
    file::end(&arguments.file, damage)?;
    if checked.errors > 0 { Err(Failure::ProblemsFound) } else { Ok(()) }
}

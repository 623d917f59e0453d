//! `toolbridge check`: checks a recording for protocol violations.

use std::{
    io::{self, BufWriter, Write as _},
    path::PathBuf,
};

use clap::Args;

use crate::cli::terminal::{
    failure::Failure,
    file,
    table::{
        Column::{self, Left, Rest, Right},
        Table,
    },
    text,
};
use toolbridge::{
    Identity,
    recording::{Checker, Level},
};

/// Time, entry, level, rule, participant and text of a finding.
const COLUMNS: [Column; 6] = [Right(10), Left(7), Left(5), Left(20), Left(16), Rest];

#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    /// Recording to check
    file: PathBuf,

    /// Print one JSON object: the findings, the numbers of errors and omitted findings, and any damage
    #[arg(long)]
    json: bool,
}

pub(in crate::cli) fn run(arguments: &Arguments) -> Result<(), Failure> {
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
        let table = Table::new(&COLUMNS);
        for found in &checked.findings {
            let level = if found.level == Level::Error { "error" } else { "note " };
            let (at, who) = (
                found.at.since(about.begun).as_secs_f64(),
                text::plain(found.who.as_ref().map_or("", Identity::as_str)),
            );
            let what = text::plain(&found.text);
            let (at, entry, rule) = (format!("{at:.6}"), format!("#{}", found.entry), found.rule.to_string());
            writeln!(out, "{}", table.row(&[&at, &entry, level, &rule, &who, &what]))?;
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

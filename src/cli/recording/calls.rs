//! `toolbridge calls`: prints a table of the calls of a recording.

use std::{
    io::{self, BufWriter, Write as _},
    path::PathBuf,
};

use clap::Args;

use crate::cli::terminal::{
    failure::{Failure, hint},
    file,
    table::{
        Column::{self, Left, Rest, Right},
        Table,
    },
    text,
};
use toolbridge::recording::{CallsBuilder, Moment, RecordedCall, call_json};

const HEADING: [&str; 11] = [
    "at s",
    "id",
    "tool",
    "runs",
    "owner",
    "asked B",
    "result B",
    "delivered",
    "started",
    "settled ms",
    " outcome",
];
const COLUMNS: [Column; 11] = [
    Right(10),
    Left(21),
    Left(24),
    Left(7),
    Left(16),
    Right(8),
    Right(8),
    Right(10),
    Right(10),
    Right(10),
    Rest,
];

#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    /// Recording to read
    file: PathBuf,

    /// Print one JSON array with all details of each call
    #[arg(long)]
    json: bool,
}

pub(in crate::cli) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut builder = CallsBuilder::default();
    let (about, damage) = file::each(&arguments.file, |_, _, entry| {
        builder.push(entry);
        Ok(())
    })?;
    let calls = builder.finish();
    let mut out = BufWriter::new(io::stdout().lock());
    if arguments.json {
        for (place, call) in calls.calls.iter().enumerate() {
            out.write_all(if place == 0 { b"[" } else { b"," })?;
            text::write_json(&mut out, &call_json(call))?;
        }
        writeln!(out, "{}", if calls.calls.is_empty() { "[]" } else { "]" })?;
    } else {
        let table = Table::new(&COLUMNS);
        writeln!(out, "{}", table.row(&HEADING))?;
        for call in &calls.calls {
            writeln!(out, "{}", row(&table, call, about.begun))?;
        }
    }
    out.flush()?;
    if calls.dropped > 0 {
        hint(&format!("{} more calls omitted", calls.dropped));
    }
    file::end(&arguments.file, damage)
}

/// Formats a call: the time of its request, and the times from then to delivery, start and settlement.
fn row(table: &Table, call: &RecordedCall, begun: Moment) -> String {
    let first = call.requested.or(call.settled);
    let at = first.map_or_else(dash, |at| format!("{:.3}", at.since(begun).as_secs_f64()));
    let after = |at: Option<Moment>| match (at, call.requested) {
        // An observer may receive copies of two frames in the wrong order.
        (Some(at), Some(requested)) if at < requested => "?".to_owned(),
        (Some(at), Some(requested)) => format!("{:.3}", at.since(requested).as_secs_f64() * 1e3),
        (Some(_), None) => "?".to_owned(),
        (None, _) => dash(),
    };
    let bytes = |bytes: Option<usize>| bytes.map_or_else(dash, |bytes| bytes.to_string());
    let owner = call.owner.as_ref().map_or_else(dash, |it| text::plain(it.as_str()).into_owned());
    let execution = match (call.rpc, call.execution) {
        (Some(version), _) => format!("rpc v{version}"),
        (None, execution) => execution.map_or("-", |it| it.as_str()).to_owned(),
    };
    let (delivered, started, settled) = (after(call.delivered), after(call.started), after(call.settled));
    let tool = if call.tool.is_empty() { "-".into() } else { text::plain(&call.tool) };
    table.row(&[
        &at,
        &text::plain(call.id.as_str()),
        &tool,
        &execution,
        &owner,
        &bytes(call.parameters),
        &bytes(call.result),
        &delivered,
        &started,
        &settled,
        &format!(" {}", text::plain(call.outcome.as_str())),
    ])
}

fn dash() -> String {
    "-".to_owned()
}

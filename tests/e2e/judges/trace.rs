//! The trace of a recording, as Chrome's DevTools read it: every call is a slice, in the process of its owner.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use tokio::process::Command;
use toolbridge::recording::{Calls, Moment, RecordedCall, Recording, calls};

use super::{Made, files, judge};
use crate::{
    program::{folder, has_peers},
    recorded::word,
    soon, trial_with,
};

pub(super) fn trials() -> Vec<Trial> {
    let missing = || (!has_peers()).then_some("@paulirish/trace_engine (scripts/peers path)");
    let add = |name: &'static str, make: fn(PathBuf) -> Made| {
        let full = format!("judges::the_trace_engine_of_devtools_pairs_all_calls_of_one_{name}");
        trial_with(&full, missing, move || paired(name, make))
    };
    vec![
        add("finished", |it| Box::pin(files::finished(it))),
        add("being_written", |it| Box::pin(files::live(it))),
        add("of_many_chunks", |it| Box::pin(files::of_many_chunks(it))),
    ]
}

/// A call as a slice: process, name, start and duration in nanoseconds, outcome.
type Slice = (String, String, u64, u64, String);

async fn paired(name: &str, make: fn(PathBuf) -> Made) -> anyhow::Result<()> {
    let folder = folder(&format!("judges-trace-{name}"))?;
    let (file, trace) = (make(folder.clone()).await?, folder.join("trace.json"));
    let mut export = Command::new(env!("CARGO_BIN_EXE_toolbridge"));
    export.args(["export", "--to", "trace"]).arg(&file).arg("-o").arg(&trace);
    let output = soon("the trace", export.output()).await??;
    ensure!(output.status.success(), "{output:?}");

    let (said, code) = judge(&["slices.mjs"], &trace, &[]).await?;
    ensure!(code == Some(0), "{said}");
    let said: Value = serde_json::from_str(&said)?;
    ensure!(
        said["events"] == said["known"],
        "the trace engine knows {} of {} events",
        said["known"],
        said["events"]
    );
    let slices = said["slices"].as_array().context("no slices")?;
    let found = slices.iter().map(|slice| Some((id_of(&slice["call"])?, seen(slice, &said["processes"])?)));
    let found: BTreeMap<_, _> = found.collect::<Option<_>>().context("a slice lacks a field")?;
    let wanted = wanted(&file)?;
    ensure!(slices.len() == wanted.len(), "{} slices of {} calls", slices.len(), wanted.len());
    for (id, wanted) in &wanted {
        ensure!(
            found.get(id).is_some_and(|found| is_close(found, wanted)),
            "{:?}, not {wanted:?}",
            found.get(id)
        );
    }
    Ok(())
}

fn id_of(call: &Value) -> Option<String> {
    Some(call["id"].as_str()?.to_owned())
}

fn seen(slice: &Value, processes: &Value) -> Option<Slice> {
    let owner = processes[slice["process"].to_string()].as_str()?;
    let nanos = |time: &Value| Some((time.as_f64()? * 1e3).round() as u64);
    let outcome = slice["call"]["outcome"].as_str()?;
    let name = slice["name"].as_str()?;
    Some((
        owner.to_owned(),
        name.to_owned(),
        nanos(&slice["start"])?,
        nanos(&slice["duration"])?,
        outcome.to_owned(),
    ))
}

/// Durations are differences of floats there.
fn is_close(found: &Slice, wanted: &Slice) -> bool {
    let alike = |slice: &Slice| (slice.0.clone(), slice.1.clone(), slice.4.clone());
    alike(found) == alike(wanted)
        && found.2.abs_diff(wanted.2) <= 1_000
        && found.3.abs_diff(wanted.3) <= 1_000
}

/// The calls according to the library's reader.
fn wanted(file: &Path) -> anyhow::Result<BTreeMap<String, Slice>> {
    let recording = Recording::open(file)?;
    let begun = recording.about().begun;
    let mut last = Moment::default();
    let Calls { calls, .. } = calls(recording.entries().inspect(|entry| last = last.max(entry.at)));
    let slice = |call: &RecordedCall| {
        let first = call.requested.or(call.settled).or(call.stopped)?;
        let end = call.settled.or(call.stopped).unwrap_or(last).max(first);
        let nanos = |from: Moment, to: Moment| to.0.saturating_sub(from.0);
        let owner = call.owner.as_ref().or(call.caller.as_ref()).unwrap().to_string();
        let slice = (owner, call.tool.clone(), nanos(begun, first), nanos(first, end), word(&call.outcome));
        Some((call.id.to_string(), slice))
    };
    calls.iter().map(slice).collect::<Option<_>>().context("a call without a time")
}

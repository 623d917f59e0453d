//! `replay --as assistant`: repeats the recorded calls with live clients and compares the results.

use std::{
    cell::Cell,
    collections::BTreeMap,
    io::{self, Write as _},
    time::Duration,
};

use serde_json::{Value as Json, json};
use tokio::time::{Instant, interval, sleep};

use super::{Arguments, Read, progress_bar::ProgressBar, read};
use crate::cli::{
    room::{connection_state, record_option::RecordOption, unreadable},
    terminal::{
        clock,
        failure::{Failure, hint},
        file,
        interrupt::{interrupted, unless_interrupted},
        table::{
            Column::{self, Left, Rest, Right},
            Table,
        },
        text,
    },
};
use toolbridge::{
    Assistant, Event, Role,
    recording::Moment,
    replay::{Live, LiveReport, NotAsked, Plan, PlannedCall, Replay, Speed},
};

/// How long closing waits for open calls; only cancelled calls can be open then.
const DRAIN: Duration = Duration::from_secs(1);

/// The time without a call after which a message says what the command is waiting for.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often the progress bar is drawn.
const DRAWN_EVERY: Duration = Duration::from_millis(200);

/// The maximum length of displayed parameters, in characters.
const MAX_SHOWN: usize = 200;

/// Time, entry, decision, tool, owner and parameters of a planned call.
const COLUMNS: [Column; 6] = [Right(10), Left(7), Left(19), Left(20), Left(16), Rest];

pub(super) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Read { what: mut live, about, damaged } = read(&arguments.file, |entries| Replay::live(entries))?;
    for tool in &arguments.allow {
        live = live.allow(tool);
    }
    if arguments.destructive {
        live = live.destructive();
    }
    if let Some(client) = &arguments.to {
        live = live.to(client.as_str());
    }
    live = live.speed(arguments.speed.map_or_else(Speed::default, Speed::from));
    let plan = live.plan();
    if let Some(unknown) = arguments.allow.iter().find(|tool| !plan.calls.iter().any(|it| it.tool == **tool))
    {
        return Err(Failure::Usage(format!("--allow {unknown:?}: the recording has no call to this tool")));
    }
    if !arguments.live || plan.asked().next().is_none() {
        show_plan(&plan, about.begun, arguments.json)?;
        let destructive = plan.calls.iter().any(|call| call.not_asked == Some(NotAsked::Destructive));
        let more = if destructive { ", and --destructive for tools marked destructive" } else { "" };
        return Err(Failure::Usage(format!(
            "nothing was sent; to call live clients pass --live, and --allow TOOL for each tool that may be called{more}"
        )));
    }
    let report = in_room(&live, &plan, arguments).await?;
    super::show(&report, arguments.json)?;
    match &report.broken_off {
        Some(reason) => Err(Failure::failed(reason)),
        None if report.is_same() && !damaged => Ok(()),
        None => Err(Failure::ProblemsFound),
    }
}

async fn in_room(live: &Live, plan: &Plan, arguments: &Arguments) -> Result<LiveReport, Failure> {
    let target = arguments.room_arguments.target("replay", Role::Assistant)?;
    let mut builder = Assistant::builder().connect_options(target.options.clone()).drain(DRAIN);
    if let Some(client) = &arguments.to {
        builder = builder.client(client.as_str());
    }
    if let Some((path, options)) = arguments.record.target() {
        builder = builder.record(path).record_options(options);
    }
    let joining = async { builder.join(&target.url, &target.token).await.map_err(file::not_joined) };
    let assistant = unless_interrupted(joining).await?;
    hint(&format!("live: repeating calls with clients in the room {:?}: {}", assistant.room(), counts(plan)));
    let report = watched(live, &assistant, &arguments.record).await;
    assistant.close().await;
    let recorded = arguments.record.outcome(assistant.recording());
    report.and_then(|report| recorded.map(|()| report))
}

/// Runs the calls and shows the progress.
async fn watched(live: &Live, assistant: &Assistant, record: &RecordOption) -> Result<LiveReport, Failure> {
    let (mut bar, told) = (ProgressBar::new(), Cell::new(None));
    let mut ask = Box::pin(live.ask(assistant, |step| told.set(Some((*step, Instant::now())))));
    let patience = sleep(PATIENCE);
    tokio::pin!(patience);
    let (mut events, mut tick, mut in_room) = (assistant.events(), interval(DRAWN_EVERY), true);
    let report = loop {
        tokio::select! {
            biased;
            () = interrupted() => break Err(Failure::Interrupted),
            report = &mut ask => break Ok(report),
            event = events.recv(), if in_room => match event {
                Some(Event::ConnectionState(state)) => {
                    bar.clear();
                    hint(connection_state::describe(state));
                }
                Some(Event::Violation { by, what, .. }) => {
                    if let Some(why) = what.unreadable() {
                        bar.clear();
                        hint(&unreadable::describe(by.as_ref(), why));
                    }
                }
                Some(Event::RecordingStopped { reason }) => {
                    bar.clear();
                    record.stopped(&reason);
                }
                Some(_) => {}
                None => in_room = false,
            },
            () = &mut patience, if !patience.is_elapsed() => {
                if told.get().is_none_or(|(step, _)| step.asked == 0) {
                    bar.clear();
                    hint("waiting for clients that offer the tools (LiveKit may announce participants up to 3 s late) …");
                }
            }
            _ = tick.tick(), if bar.is_shown() => if let Some((mut step, since)) = told.get() {
                if step.asked > 0 {
                    step.left = step.left.saturating_sub(since.elapsed());
                }
                bar.draw(&step);
            },
        }
    };
    bar.clear();
    report
}

/// Formats the number of calls per tool.
fn counts(plan: &Plan) -> String {
    let mut counts = BTreeMap::<&str, usize>::new();
    for call in plan.asked() {
        *counts.entry(&call.tool).or_default() += 1;
    }
    let each: Vec<_> = counts.iter().map(|(tool, calls)| format!("{calls} of {tool}")).collect();
    each.join(", ")
}

fn show_plan(plan: &Plan, begun: Moment, as_json: bool) -> Result<(), Failure> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    if as_json {
        let calls: Vec<_> = plan.calls.iter().map(as_value).collect();
        writeln!(out, "{}", text::json(&json!({ "calls": calls })))?;
    } else {
        let table = Table::new(&COLUMNS);
        for call in &plan.calls {
            let at = call.at.since(begun).as_secs_f64();
            let what = call.not_asked.map_or_else(|| "would call".to_owned(), |why| why.to_string());
            let (tool, owner) = (text::plain(&call.tool), call.owner.as_ref().map_or("", |it| it.as_str()));
            let (owner, parameters) = (text::plain(owner), shown(call));
            let (at, entry) = (format!("{at:.6}"), format!("#{}", call.entry));
            writeln!(out, "{}", table.row(&[&at, &entry, &what, &tool, &owner, &parameters]))?;
        }
        writeln!(out, "{} of {} calls would be repeated", plan.asked().count(), plan.calls.len())?;
    }
    out.flush()?;
    Ok(())
}

fn as_value(call: &PlannedCall) -> Json {
    json!({
        "entry": call.entry,
        "atMs": call.at,
        "call": call.call.as_str(),
        "tool": call.tool,
        "owner": call.owner,
        "parameters": call.parameters.as_ref().map(toolbridge::Value::to_json),
        "limitMs": clock::ms(call.limit),
        "outcome": call.outcome,
        "not_asked": call.not_asked,
    })
}

/// Formats the parameters on one line.
fn shown(call: &PlannedCall) -> String {
    let Some(parameters) = &call.parameters else { return String::new() };
    let json = text::json(&parameters.to_json());
    match json.char_indices().nth(MAX_SHOWN) {
        Some((at, _)) => format!("{}…", &json[..at]),
        None => json,
    }
}

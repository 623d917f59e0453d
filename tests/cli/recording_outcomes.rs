//! A mixed session of 2,000 calls on a paused clock: the recordings of the caller, of an owner and of an observer have
//! the outcomes that the caller read.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::sleep};
use toolbridge::{
    Assistant, BargeIn, Client, ToolError, ToolOptions,
    memory::{MemoryRoom, MemoryTransport},
    recording::{Recorder, RecorderOptions, Recording, Tap, calls, check, info, report},
    transport::Transport,
};

use crate::{
    cli::{run, text},
    folder::Folder,
    session_world::{MS, Random},
};

/// The rounds of the session, and the calls of each.
const ROUNDS: usize = 100;
const CALLS: usize = 20;

/// What one call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// It succeeds or fails.
    Answered,
    /// It exceeds its limit, or nearly so.
    Late,
    /// It is cancelled, or its answer comes first.
    Cancelled,
    /// The user interrupts its turn.
    Interrupted,
    /// As above, and its tool continues.
    LeftRunning,
    /// Its owner leaves.
    Lost,
    /// The assistant runs it itself.
    Own,
    /// No participant offers its tool.
    Unasked,
}

/// A call as its caller read its outcome.
#[derive(Debug)]
struct Read {
    id: String,
    kind: Kind,
    outcome: String,
}

#[derive(Deserialize, schemars::JsonSchema)]
struct Work {
    /// How long it takes.
    ms: u64,
}

async fn work(work: Work) -> Result<u64, ToolError> {
    sleep(Duration::from_millis(work.ms)).await;
    Ok(work.ms)
}

async fn fail(work: Work) -> Result<u64, ToolError> {
    sleep(Duration::from_millis(work.ms)).await;
    Err(ToolError::new("broken", "it broke"))
}

/// Waits for a call, and notes what its caller reads.
async fn read(kind: Kind, call: toolbridge::Call) -> Read {
    let id = call.id().unwrap().to_string();
    let outcome = match call.await {
        Ok(_) => "ok".to_owned(),
        Err(error) => ToolError::from(error).code().to_string(),
    };
    Read { id, kind, outcome }
}

/// Waits until a call has ended.
async fn ended(call: &mut toolbridge::Call) {
    while call.progress().await.is_some() {}
}

/// Makes a call of this kind, whose times are drawn.
async fn call(caller: Assistant, kind: Kind, mut random: Random) -> Vec<Read> {
    let mut draw = |most: u64| 1 + random.below(most);
    let after = Duration::from_millis(draw(60));
    let around = |ms: u64| json!({"ms": ms});
    match kind {
        Kind::Answered if draw(3) == 1 => {
            vec![read(kind, caller.call("fail", around(draw(20))).start()).await]
        }
        Kind::Answered => vec![read(kind, caller.call("work", around(draw(20))).to("phone").start()).await],
        Kind::Own => {
            let limit = Duration::from_millis(20);
            vec![read(kind, caller.call("own", around(draw(40))).timeout(limit).start()).await]
        }
        Kind::Late => {
            let (limit, takes) = (40 + draw(20), 30 + draw(40));
            let late = caller.call("work", around(takes)).to("phone").timeout(Duration::from_millis(limit));
            vec![read(kind, late.start()).await]
        }
        Kind::Cancelled => {
            let mut call = caller.call("work", around(draw(60))).to("phone").start();
            tokio::select! {
                () = sleep(after) => call.cancel(),
                () = ended(&mut call) => {}
            }
            vec![read(kind, call).await]
        }
        Kind::Interrupted | Kind::LeftRunning => {
            let turn = caller.turn();
            let tools = if kind == Kind::Interrupted { &["work"][..] } else { &["finish", "report"] };
            let calls: Vec<_> =
                tools.iter().map(|tool| turn.call(tool, around(80 + draw(40))).to("phone").start()).collect();
            sleep(after).await;
            turn.barge_in();
            let mut all = Vec::new();
            for call in calls {
                all.push(read(kind, call).await);
            }
            all
        }
        Kind::Lost => vec![read(kind, caller.call("wander", around(3_600_000)).start()).await],
        Kind::Unasked => vec![read(kind, caller.call("nothing", ()).owner_wait(30 * MS).start()).await],
    }
}

/// A queue that never fills, since the writer has less time than the paused clock says.
fn options() -> RecorderOptions {
    RecorderOptions::default().queue(1 << 20, 1 << 30)
}

fn recorder(file: &Path) -> Recorder {
    Recorder::create(file, options()).unwrap()
}

/// Receives until the task ends.
async fn watch(mut tap: Tap<MemoryTransport>, mut end: tokio::sync::oneshot::Receiver<()>) {
    loop {
        tokio::select! {
            _ = &mut end => break,
            _ = tap.recv() => {}
        }
    }
    tap.close().await;
}

/// Runs the session, and returns what the caller read of each call.
async fn session(files: &[PathBuf; 3]) -> Vec<Read> {
    let room = MemoryRoom::named("kitchen");
    room.delay(3 * MS);
    let [caller_file, owner_file, observer_file] = files;
    let (of_owner, of_observer) = (recorder(owner_file), recorder(observer_file));
    let (end, ended) = tokio::sync::oneshot::channel();
    let watching = tokio::spawn(watch(of_observer.tap(room.observer("eye")), ended));
    let rule = |rule| ToolOptions::default().barge_in(rule);
    let phone = Client::builder()
        .tool("work", "", work)
        .tool("fail", "", fail)
        .tool("finish", "", rule(BargeIn::Finish).on(work))
        .tool("report", "", rule(BargeIn::Report).on(work))
        .join_over(of_owner.tap(room.client("phone")))
        .await
        .unwrap();
    let caller = Assistant::builder()
        .tool("own", "", work)
        .record(caller_file)
        .record_options(options())
        .join_over(room.assistant("assistant"))
        .await
        .unwrap();
    caller.ready("phone").await.unwrap();
    let mut random = Random(7);
    let (mut all, mut round) = (Vec::new(), 0);
    while all.len() < ROUNDS * CALLS {
        let wanderer = if round % 10 == 0 {
            let wanderer = Client::builder().tool("wander", "", work).join_over(room.client("wanderer"));
            let wanderer = wanderer.await.unwrap();
            caller.ready("wanderer").await.unwrap();
            Some(wanderer)
        } else {
            None
        };
        let mut running = JoinSet::new();
        for n in 0..CALLS {
            let kind = match n % 10 {
                _ if n < 3 && wanderer.is_some() => Kind::Lost,
                0..4 => Kind::Answered,
                4 | 5 => Kind::Late,
                6 => Kind::Cancelled,
                7 => random.pick(&[Kind::Interrupted, Kind::LeftRunning]),
                8 => Kind::Own,
                _ => random.pick(&[Kind::Unasked, Kind::Late]),
            };
            let seed = Random(random.below(1 << 30) | 1);
            running.spawn(call(caller.clone(), kind, seed));
        }
        if let Some(wanderer) = wanderer {
            sleep(50 * MS).await;
            room.leave("wanderer");
            wanderer.closed().await;
        }
        while let Some(read) = running.join_next().await {
            all.extend(read.unwrap());
        }
        round += 1;
        sleep(350 * MS).await; // a client begins 50 calls in a second, and is busy beyond that
    }
    sleep(Duration::from_secs(2)).await; // everything in flight arrives
    caller.close().await;
    phone.close().await;
    end.send(()).unwrap();
    watching.await.unwrap();
    of_owner.finish().unwrap();
    of_observer.finish().unwrap();
    while !Recording::open(caller_file).unwrap().about().finished {
        std::thread::yield_now();
    }
    all
}

/// The calls whose request, its copy or its event `cat` prints for this outcome.
fn printed(file: &str, outcome: &str) -> BTreeSet<String> {
    let output = run(&["cat", file, "--format", "ndjson", "--outcome", outcome]);
    assert!(output.status.success(), "{output:?}");
    let lines = text(&output.stdout).lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let id = |line: Value| {
        let frame = &line["frame"];
        let id = if frame["type"] == 6 { &frame["body"]["id"] } else { &line["call"] };
        id.as_str().map(str::to_owned)
    };
    lines.filter_map(id).collect()
}

#[tokio::test(start_paused = true)]
async fn outcomes_of_a_mixed_session_are_those_that_the_caller_read() {
    let folder = Folder::new();
    let files = ["caller.mcap", "owner.mcap", "observer.mcap"].map(|name| folder.file(name));
    let read = session(&files).await;
    let wanted: BTreeMap<&str, &Read> = read.iter().map(|read| (read.id.as_str(), read)).collect();
    assert!(wanted.len() >= ROUNDS * CALLS, "{}", wanted.len());
    let mut reached: BTreeMap<(Kind, &str), usize> = BTreeMap::new();
    for read in &read {
        *reached.entry((read.kind, &read.outcome)).or_default() += 1;
    }
    for pair in [
        (Kind::Answered, "ok"),
        (Kind::Answered, "broken"),
        (Kind::Late, "busy"),
        (Kind::Late, "ok"),
        (Kind::Late, "timeout"),
        (Kind::Cancelled, "cancelled"),
        (Kind::Cancelled, "ok"),
        (Kind::Interrupted, "cancelled"),
        (Kind::LeftRunning, "cancelled"),
        (Kind::LeftRunning, "detached"),
        (Kind::Lost, "lost"),
        (Kind::Own, "ok"),
        (Kind::Own, "timeout"),
        (Kind::Unasked, "unknown_tool"),
    ] {
        assert!(reached.get(&pair).is_some_and(|count| *count >= 20), "{pair:?}: {reached:?}");
    }
    for (who, file) in ["caller", "owner", "observer"].into_iter().zip(&files) {
        let entries: Vec<_> = Recording::open(file).unwrap().entries().collect();
        let found = calls(entries.clone()).calls;
        let mut counts = BTreeMap::<String, u64>::new();
        let mut compared = 0;
        for call in &found {
            let outcome = call.outcome.as_str();
            *counts.entry(outcome.to_owned()).or_default() += 1;
            let Some(read) = wanted.get(call.id.as_str()) else { continue };
            let known = match (who, read.kind) {
                ("caller", _) => true,
                // Only the caller knows that it does not wait, or that it has given its owner up.
                (_, Kind::LeftRunning) => {
                    assert!(["ok", "busy"].contains(&outcome), "{who}: {read:?}: {call:#?}");
                    false
                }
                (_, Kind::Lost) => {
                    assert_eq!(outcome, "open", "{who}: {read:?}: {call:#?}");
                    false
                }
                _ => true,
            };
            if known {
                assert_eq!(outcome, read.outcome, "{who}: {read:?}: {call:#?}");
                compared += 1;
            }
        }
        let least = match who {
            "caller" => read.len(),
            "owner" => read.len() / 2,
            _ => read.len() * 3 / 4,
        };
        assert!(compared >= least, "{who}: {compared} of {}", read.len());
        assert_eq!(check(entries.clone()).errors, 0, "{who}");
        // The other verbs say the same.
        assert_eq!(info(entries.clone()).outcomes, counts, "{who}");
        let page = report(entries.clone(), &found, "session");
        for (outcome, count) in &counts {
            let path = file.to_str().unwrap();
            let of_outcome = found.iter().filter(|call| call.outcome.as_str() == outcome);
            let has_request = of_outcome.filter(|call| call.requested.is_some());
            let ids: BTreeSet<_> = has_request.map(|call| call.id.to_string()).collect();
            assert!(ids.len() as u64 <= *count);
            assert_eq!(printed(path, outcome), ids, "{who}: {outcome}");
        }
        let rows = rows_of(&page);
        for call in &found {
            let shown = &rows[call.id.as_str()];
            let outcome = call.outcome.as_str();
            assert!(
                shown == outcome || shown.is_empty() && ["ok", "open"].contains(&outcome),
                "{shown} {outcome}"
            );
        }
    }
}

/// The code of each call in the data of a report's page; empty without one.
fn rows_of(page: &str) -> BTreeMap<String, String> {
    let data = page.split_once("id=\"data\">").unwrap().1;
    let data: Value = serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap();
    let texts = &data["texts"];
    let rows = data["calls"].as_array().unwrap().iter();
    rows.map(|row| {
        let code = row[10].as_u64().and_then(|place| texts[place as usize].as_str()).unwrap_or_default();
        (row[0].as_str().unwrap().to_owned(), code.to_owned())
    })
    .collect()
}

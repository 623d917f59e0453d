//! Sessions recorded by an observer: `toolbridge record` and `watch --record` over a real server.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::interval;
use toolbridge::{
    Assistant, Client,
    recording::{Entry, Happened, RecordedCall, RecordedOutcome, Recording, RoomEvent, calls},
};

use crate::{
    ends::{assistant, client, double, hang},
    program::{Output, Planned, Program, tools_file},
    relay::Relay,
    server::{Server, shared},
    soon,
};

pub(crate) fn trials() -> Vec<Trial> {
    trials![observe:
        observer_records_a_session_that_every_verb_reads,
        hidden_observer_receives_broadcasts_and_is_marked,
        two_observers_have_the_same_calls,
        killed_recorder_leaves_a_repairable_file,
        watch_records_what_it_prints,
        observer_continues_in_the_same_file_after_a_rejoin,
        recording_ends_after_its_duration,
        second_ctrl_c_leaves_at_once_with_a_readable_file,
        deleted_room_ends_the_recording_cleanly,
        full_disk_ends_the_recording_with_one_error,
        existing_file_is_replaced_only_with_force,
        wrong_usage_is_reported_before_joining,
    ]
}

/// The interval of polling a file that is being written. Nothing depends on it.
const ASK: Duration = Duration::from_millis(20);

/// Returns an unused file name in a temporary folder.
fn place(name: &str) -> anyhow::Result<PathBuf> {
    Ok(tools_file(name, &[])?.with_file_name("session.mcap"))
}

fn record(server: &Server, room: &str, path: &Path, more: &[&str]) -> Planned {
    Program::toolbridge(server, &["record", "--room", room]).arg(path).args(more)
}

/// Waits until the file, which is still being written, has the wanted entries.
async fn until(path: &Path, what: &str, wanted: impl Fn(&[Entry]) -> bool) -> anyhow::Result<()> {
    let mut again = interval(ASK);
    let look = async {
        loop {
            again.tick().await;
            let entries = Recording::open(path).map(|it| it.entries().collect::<Vec<_>>());
            if entries.is_ok_and(|entries| wanted(&entries)) {
                return;
            }
        }
    };
    soon(what, look).await
}

fn of(entries: &[Entry]) -> Vec<RecordedCall> {
    calls(entries.to_vec()).calls
}

/// Returns how many calls have an end.
fn settled(entries: &[Entry]) -> usize {
    of(entries).iter().filter(|call| call.settled.is_some()).count()
}

fn begun(entries: &[Entry]) -> bool {
    entries.iter().any(|it| matches!(it.what, Happened::Event(RoomEvent::Here { .. })))
}

/// A phone and an assistant that know the observer.
struct Watched {
    phone: Client,
    brain: Assistant,
}

impl Watched {
    async fn by(server: &Server, room: &str, observers: &[&str]) -> anyhow::Result<Self> {
        let tools = Client::builder().tool("double", "Twice a number", double).tool("hang", "", hang);
        let phone = client(server, room, "phone", tools).await?;
        let builder = Assistant::builder().client("phone").tool("ours", "The assistant's own", double);
        let brain = assistant(server, room, "brain", builder).await?;
        for observer in observers {
            let is_it = |who: &toolbridge::transport::Participant| *who.identity() == **observer;
            soon("the observer", async {
                while ![phone.participants(), brain.participants()].iter().all(|all| all.iter().any(is_it)) {
                    tokio::task::yield_now().await;
                }
            })
            .await?;
        }
        Ok(Self { phone, brain })
    }

    /// A success, a call of the assistant's own tool, and a tool that the phone does not have.
    async fn calls(&self) -> anyhow::Result<()> {
        let doubled: u64 = self.brain.call("double", json!({"n": 21})).await?.decode()?;
        ensure!(doubled == 42);
        self.brain.call("ours", json!({"n": 1})).await?;
        let wrong = self.brain.call("double", json!({"n": "a secret word"})).await;
        ensure!(wrong.is_err());
        Ok(())
    }
}

/// Runs a verb that reads a file; returns its standard output and asserts this status.
async fn read(server: &Server, arguments: &[&str], path: &Path, status: i32) -> anyhow::Result<String> {
    let output = Program::toolbridge(server, arguments).arg(path).run().await?;
    ensure!(output.code == Some(status), "{arguments:?}: {output:?}");
    Ok(output.stdout)
}

/// Asserts that it ended cleanly: one line that summarizes the file.
fn in_order(output: &Output, path: &Path) -> anyhow::Result<String> {
    ensure!(output.code == Some(0), "{output:?}");
    let line = output.stdout.strip_suffix('\n').context("no line")?;
    ensure!(!line.contains('\n') && line.starts_with(&format!("{}: ", path.display())), "{output:?}");
    let recording = Recording::open(path)?;
    ensure!(recording.about().finished && recording.about().role == Some(toolbridge::Role::Observer));
    let mode = fs::metadata(path)?.permissions().mode();
    ensure!(mode & 0o777 == 0o600, "{mode:o}");
    Ok(line.to_owned())
}

async fn observer_records_a_session_that_every_verb_reads() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "observe");
    let path = place(room)?;
    let recorder = record(&server, room, &path, &["--identity", "eye"]).start()?;
    let ends = Watched::by(&server, room, &["eye"]).await?;
    ends.calls().await?;
    until(&path, "three results", |entries| settled(entries) == 3).await?;
    let open = ends.brain.call("hang", ()).start();
    until(&path, "the fourth", |entries| of(entries).len() == 4).await?;
    recorder.interrupt()?;
    let output = recorder.finish().await?;
    let line = in_order(&output, &path)?;
    ensure!(line.contains(" frames, 4 calls, "), "{line}");
    ensure!(
        output.stderr == format!("recording {room} as eye into {}, until Ctrl-C\n", path.display()),
        "{output:?}"
    );
    drop(open);

    let info: Value = serde_json::from_str(&read(&server, &["info", "--json"], &path, 0).await?)?;
    ensure!(info["identity"] == "eye" && info["room"] == room && info["finished"] == true, "{info}");
    ensure!(info["outcomes"] == json!({"ok": 2, "invalid_parameters": 1, "open": 1}), "{info}");
    ensure!(info["problems"] == json!({}) && info["notes"] == json!({}), "{info}");
    ensure!(read(&server, &["info"], &path, 0).await?.contains("an observer: it receives copies"));
    let listed: Value = serde_json::from_str(&read(&server, &["calls", "--json"], &path, 0).await?)?;
    let rows: Vec<_> = listed.as_array().context("no list")?.iter().collect();
    ensure!(
        rows.len() == 4 && rows.iter().all(|it| it["caller"] == "brain" && it["delivered"].is_null()),
        "{listed}"
    );
    let owners: Vec<_> = rows.iter().map(|it| it["owner"].as_str().unwrap_or_default()).collect();
    ensure!(owners[..3] == ["phone", "brain", "phone"], "{listed}");
    ensure!(read(&server, &["check"], &path, 0).await?.contains("0 errors, 0 notes"));
    let text = read(&server, &["cat"], &path, 0).await?;
    ensure!(text.contains("eye  joined as observer") && text.contains("double client"), "{text}");
    ensure!(read(&server, &["cat", "--format", "ndjson"], &path, 0).await?.lines().count() > 10);
    let replay = Program::toolbridge(&server, &["replay"]).arg(&path).run().await?;
    ensure!(replay.code == Some(1) && replay.stdout.is_empty(), "{replay:?}");
    ensure!(replay.stderr.contains("the recording was made by an observer"), "{replay:?}");
    let page = path.with_extension("html");
    let report = Program::toolbridge(&server, &["report", "-o"]).arg(&page).arg(&path).run().await?;
    ensure!(
        report.code == Some(0) && fs::read_to_string(&page)?.contains("invalid_parameters"),
        "{report:?}"
    );
    let (bare, again) = (path.with_extension("bare"), path.with_extension("again"));
    for (verb, out) in [("redact", &bare), ("repair", &again)] {
        let done = Program::toolbridge(&server, &[verb]).arg(&path).arg(out).run().await?;
        ensure!(done.code == Some(0), "{verb}: {done:?}");
        ensure!(read(&server, &["check"], out, 0).await?.contains("0 errors, 0 notes"), "{verb}");
    }
    ensure!(!read(&server, &["cat", "--format", "ndjson"], &bare, 0).await?.contains("a secret word"));
    ends.phone.close().await;
    Ok(())
}

async fn hidden_observer_receives_broadcasts_and_is_marked() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "observe-hidden");
    let path = place(room)?;
    let recorder = record(&server, room, &path, &["--identity", "ghost", "--hidden"]).start()?;
    until(&path, "its beginning", begun).await?;
    let ends = Watched::by(&server, room, &[]).await?;
    ends.calls().await?;
    until(&path, "the broadcast", |entries| settled(entries) == 1).await?;
    let is_ghost = |who: &toolbridge::transport::Participant| *who.identity() == *"ghost";
    ensure!(
        !ends.brain.participants().iter().any(is_ghost) && !ends.phone.participants().iter().any(is_ghost)
    );
    recorder.interrupt()?;
    let output = recorder.finish().await?;
    let line = in_order(&output, &path)?;
    ensure!(line.contains("2 frames, 1 call, "), "{line}");
    ensure!(
        output.stderr.contains("hidden: other participants cannot see this observer")
            && output.stderr.contains("whole room"),
        "{output:?}"
    );
    let entries: Vec<_> = Recording::open(&path)?.entries().collect();
    let only = of(&entries);
    ensure!(read(&server, &["info"], &path, 0).await?.contains("a hidden observer"));
    ensure!(only.len() == 1 && only[0].tool == "ours" && only[0].outcome == RecordedOutcome::Ok, "{only:#?}");
    ensure!(read(&server, &["check"], &path, 0).await?.contains("0 errors, 0 notes"));

    // Also with a finished hidden token, with or without --hidden.
    let token = Program::toolbridge(&server, &["token", "--room", room, "--identity", "ghost"]);
    let token = token.args(&["--role", "observer", "--hidden"]).run().await?.stdout;
    let again = place("observe-hidden-token")?;
    let recorder = Program::toolbridge(&server, &["record", "--token", token.trim()])
        .arg(&again)
        .without_key()
        .start()?;
    until(&again, "its beginning", begun).await?;
    recorder.interrupt()?;
    let output = recorder.finish().await?;
    in_order(&output, &again)?;
    ensure!(output.stderr.contains("hidden: other participants cannot see this observer"), "{output:?}");
    Ok(())
}

async fn two_observers_have_the_same_calls() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "observe-two");
    let paths = [place("observe-two-a")?, place("observe-two-b")?];
    let one = record(&server, room, &paths[0], &["--identity", "eye"]).start()?;
    let two = record(&server, room, &paths[1], &["--identity", "ear"]).start()?;
    let ends = Watched::by(&server, room, &["eye", "ear"]).await?;
    ends.calls().await?;
    let mut found = Vec::new();
    for (recorder, path) in [one, two].into_iter().zip(&paths) {
        until(path, "three results", |entries| settled(entries) == 3).await?;
        recorder.signal(Signal::TERM)?;
        in_order(&recorder.finish().await?, path)?;
        ensure!(read(&server, &["check"], path, 0).await?.contains("0 errors, 0 notes"));
        let entries: Vec<_> = Recording::open(path)?.entries().collect();
        let all = of(&entries).into_iter();
        found.push(all.map(|it| (it.id, it.tool, it.caller, it.owner, it.outcome)).collect::<Vec<_>>());
    }
    ensure!(found[0] == found[1] && found[0].len() == 3, "{found:#?}");
    Ok(())
}

async fn killed_recorder_leaves_a_repairable_file() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "observe-killed");
    let path = place(room)?;
    let recorder = record(&server, room, &path, &["--identity", "eye"]).start()?;
    let ends = Watched::by(&server, room, &["eye"]).await?;
    ends.calls().await?;
    until(&path, "three results", |entries| settled(entries) == 3).await?;
    recorder.kill();
    ensure!(recorder.finish().await?.code.is_none());
    ensure!(!Recording::open(&path)?.about().finished);
    let whole = path.with_extension("whole");
    let repaired = Program::toolbridge(&server, &["repair"]).arg(&path).arg(&whole).run().await?;
    ensure!(repaired.code == Some(0), "{repaired:?}");
    let entries: Vec<_> = Recording::open(&whole)?.entries().collect();
    ensure!(Recording::open(&whole)?.about().finished && settled(&entries) == 3, "{repaired:?}");
    ensure!(read(&server, &["check"], &whole, 0).await?.contains("0 errors, 0 notes"));
    Ok(())
}

async fn watch_records_what_it_prints() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "observe-watch");
    let path = place(room)?;
    let mut watch =
        Program::toolbridge(&server, &["watch", "--json", "--room", room, "--identity", "eye", "--record"])
            .arg(&path)
            .start()?;
    let ends = Watched::by(&server, room, &["eye"]).await?;
    ends.calls().await?;
    until(&path, "three results", |entries| settled(entries) == 3).await?;
    watch.line("invalid_parameters").await?;
    watch.interrupt()?;
    let output = watch.finish().await?;
    ensure!(output.code == Some(0), "{output:?}");
    // Only frames on standard output: the summary of the file goes to stderr.
    let shown = output.stdout.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let shown = shown.iter().filter(|it| it["frame"].is_object()).count();
    ensure!(output.stderr.contains(&format!("{}: {shown} frames, 3 calls, ", path.display())), "{output:?}");
    ensure!(Recording::open(&path)?.about().finished);
    let again = Program::toolbridge(&server, &["watch", "--room", room, "--record"]).arg(&path).run().await?;
    ensure!(again.code == Some(2) && again.stderr.contains("choose another name"), "{again:?}");
    Ok(())
}

async fn observer_continues_in_the_same_file_after_a_rejoin() -> anyhow::Result<()> {
    let server = shared()?;
    let (relay, room) = (Relay::start(&server).await?, "observe-rejoin");
    let path = place(room)?;
    let url = relay.url();
    let recorder = record(&server, room, &path, &["--identity", "eye", "--url", &url]).start()?;
    let ends = Watched::by(&server, room, &["eye"]).await?;
    ends.calls().await?;
    until(&path, "three results", |entries| settled(entries) == 3).await?;
    let sid_of = |brain: &Assistant| {
        let all = brain.participants();
        all.iter().find(|who| *who.identity() == *"eye").map(|who| who.sid().clone())
    };
    let before = sid_of(&ends.brain);
    relay.evict();
    let joins = |entries: &[Entry]| {
        entries.iter().filter(|it| matches!(it.what, Happened::Event(RoomEvent::Here { .. }))).count()
    };
    until(&path, "the second join", |entries| joins(entries) == 2).await?;
    soon("the new sid", async {
        while sid_of(&ends.brain).is_none_or(|sid| Some(sid) == before) {
            tokio::task::yield_now().await;
        }
    })
    .await?;
    ends.brain.call("ours", json!({"n": 2})).await?;
    until(&path, "the fourth result", |entries| settled(entries) == 4).await?;
    recorder.interrupt()?;
    let output = recorder.finish().await?;
    in_order(&output, &path)?;
    ensure!(output.stderr.contains("reconnecting") && output.stderr.contains("reconnected"), "{output:?}");
    ensure!(read(&server, &["check"], &path, 0).await?.contains("0 errors"));
    let info: Value = serde_json::from_str(&read(&server, &["info", "--json"], &path, 0).await?)?;
    let peers = info["peers"].as_array().context("no participants")?;
    let eye = peers.iter().find(|it| it["identity"] == "eye").context("no observer")?;
    ensure!(eye["role"] == "observer" && eye["sids"].as_array().is_some_and(|it| it.len() == 2), "{eye}");
    Ok(())
}

async fn recording_ends_after_its_duration() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "observe-for");
    let path = place(room)?;
    let output = record(&server, room, &path, &["--for", "100ms"]).run().await?;
    let line = in_order(&output, &path)?;
    ensure!(line.contains("0 frames, 0 calls, "), "{line}");
    Ok(())
}

async fn second_ctrl_c_leaves_at_once_with_a_readable_file() -> anyhow::Result<()> {
    let server = Server::start("")?;
    let path = place("observe-twice")?;
    let recorder = record(&server, "observe-twice", &path, &[]).start()?;
    until(&path, "its beginning", begun).await?;
    // A silent server is waited for until a second Ctrl-C.
    server.pause();
    recorder.interrupt()?;
    recorder.signal(Signal::TERM)?;
    let output = recorder.finish().await?;
    server.resume();
    ensure!(output.code == Some(130) && output.stdout.is_empty(), "{output:?}");
    // A small file may be finished nevertheless, when it is dropped.
    ensure!(begun(&Recording::open(&path)?.entries().collect::<Vec<_>>()));
    let whole = path.with_extension("whole");
    let repaired = Program::toolbridge(&server, &["repair"]).arg(&path).arg(&whole).run().await?;
    ensure!(repaired.code == Some(0) && Recording::open(&whole)?.about().finished, "{repaired:?}");
    Ok(())
}

async fn deleted_room_ends_the_recording_cleanly() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "observe-deleted");
    let path = place(room)?;
    let recorder = record(&server, room, &path, &[]).start()?;
    until(&path, "its beginning", begun).await?;
    server.room_service("DeleteRoom", room, json!({"room": room})).await?;
    let output = recorder.finish().await?;
    ensure!(output.code == Some(1) && output.stdout.lines().count() == 1, "{output:?}");
    ensure!(output.stderr.contains("toolbridge: ") && output.stderr.contains("delete"), "{output:?}");
    ensure!(Recording::open(&path)?.about().finished);
    let entries: Vec<_> = Recording::open(&path)?.entries().collect();
    let last = &entries.last().context("nothing")?.what;
    ensure!(matches!(last, Happened::Event(RoomEvent::Closed { .. })), "{last:?}");
    Ok(())
}

async fn full_disk_ends_the_recording_with_one_error() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "observe-full");
    let path = place(room)?;
    // A shell's limit on file sizes, in blocks of 512 or 1,024 bytes, simulates a full disk.
    let line = "trap '' XFSZ; ulimit -f 8; exec toolbridge record --identity eye --room observe-full \"$0\"";
    let recorder = Program::other(&server, "sh", &["-c", line]).arg(&path).start()?;
    let ends = Watched::by(&server, room, &["eye"]).await?;
    let text = "x".repeat(5_000);
    let calls = async {
        for _ in 0..4 {
            let refused = ends.brain.call("double", json!({"n": text})).await;
            ensure!(refused.is_err());
        }
        Ok(())
    };
    calls.await?;
    let output = recorder.finish().await?;
    ensure!(output.code == Some(1) && output.stdout.is_empty(), "{output:?}");
    let errors: Vec<_> = output.stderr.lines().filter(|it| it.starts_with("toolbridge: ")).collect();
    ensure!(errors.len() == 1, "{output:?}");
    ensure!(
        errors[0].contains("the recording stopped early") && errors[0].contains("toolbridge repair"),
        "{output:?}"
    );
    ensure!(errors[0].contains(path.to_str().context("no text")?), "{output:?}");
    let whole = path.with_extension("whole");
    let repaired = Program::toolbridge(&server, &["repair"]).arg(&path).arg(&whole).run().await?;
    ensure!(repaired.code == Some(0), "{repaired:?}");
    ensure!(begun(&Recording::open(&whole)?.entries().collect::<Vec<_>>()));
    Ok(())
}

async fn existing_file_is_replaced_only_with_force() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "observe-there");
    let path = place(room)?;
    fs::write(&path, "a diary")?;
    let refused = record(&server, room, &path, &[]).run().await?;
    ensure!(refused.code == Some(2) && refused.stdout.is_empty(), "{refused:?}");
    ensure!(refused.stderr.contains("already exists") && refused.stderr.contains("--force"), "{refused:?}");
    ensure!(fs::read_to_string(&path)? == "a diary");
    let output = record(&server, room, &path, &["--force", "--for", "1ms"]).run().await?;
    in_order(&output, &path)?;
    // A missing folder is reported after the room was left.
    let nowhere = path.with_file_name("nowhere").join("session.mcap");
    let output = record(&server, room, &nowhere, &[]).run().await?;
    ensure!(output.code == Some(1) && output.stderr.contains("nowhere"), "{output:?}");
    Ok(())
}

async fn wrong_usage_is_reported_before_joining() -> anyhow::Result<()> {
    let server = shared()?;
    let path = place("observe-wrong")?;
    let seen = server.key().observer("r", "eye").sign()?;
    let phone = server.key().client("r", "phone").sign()?;
    let wrong: [(&[&str], &str); 6] = [
        (&["--token", &seen, "--hidden"], "`hidden` grant"),
        (&["--token", &phone], "needs the role observer"),
        (&["--token", &seen, "--room", "other"], "the token is for the room"),
        (&[], "no room"),
        (&["--room", "r", "--for", "0s"], "more than 0"),
        (&["--room", "r", "--for", "soon"], "--for"),
    ];
    for (arguments, says) in wrong {
        let output = Program::toolbridge(&server, &["record"]).arg(&path).args(arguments).run().await?;
        ensure!(output.code == Some(2) && output.stdout.is_empty(), "{arguments:?}: {output:?}");
        ensure!(output.stderr.contains(says), "{arguments:?}: {output:?}");
        if path.exists() {
            bail!("{arguments:?} created a file");
        }
    }
    let output = Program::toolbridge(&server, &["record", "--room", "r"]).run().await?;
    ensure!(output.code == Some(2) && output.stderr.contains("OUT.mcap"), "{output:?}");
    let token = ["token", "--room", "r", "--identity", "i", "--hidden"];
    let output = Program::toolbridge(&server, &token).run().await?;
    ensure!(output.code == Some(2) && output.stderr.contains("--role observer"), "{output:?}");
    Ok(())
}

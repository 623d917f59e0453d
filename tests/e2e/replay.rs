//! Live replays of the built program over a real server: a cassette for `call`, and repeated calls to `client`.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::{Value, json};
use toolbridge::{Assistant, CallError, replay::Cassette};

use crate::{
    ends::{assistant, client, nothing_offered, patient},
    program::{Output, Program, tools_file},
    server::{Server, shared},
    soon,
};

pub(crate) fn trials() -> Vec<Trial> {
    trials![replay:
        recorded_client_serves_a_live_assistant_and_misses_exit_with_status_3,
        live_clients_are_called_again_and_differences_exit_with_status_3,
        recorded_client_serves_a_library_user,
        ctrl_c_of_a_cassette_says_goodbye,
        ctrl_c_of_a_replay_stops_open_calls_and_says_goodbye,
        replay_fails_when_its_room_is_deleted,
    ]
}

/// Programs that succeed, fail, and return at once.
const PROGRAMS: &[(&str, &str)] = &[
    ("where_is", r#"echo "{\"room\": \"kitchen\"}""#),
    ("echo", "cat"),
    ("fail", "echo 'it is dark' >&2; exit 3"),
];

/// The same names with other behavior.
const CHANGED: &[(&str, &str)] =
    &[("where_is", r#"echo "{\"room\": \"cellar\"}""#), ("echo", "cat"), ("fail", "cat")];

/// A client of programs that knows its assistant.
async fn phone(
    server: &Server,
    room: &str,
    programs: &[(&str, &str)],
    record: Option<&Path>,
) -> anyhow::Result<Program> {
    let file = tools_file(&format!("{room}-{}", programs[0].1.len()), programs)?;
    let arguments = ["client", "--room", room, "--identity", "phone", "--assistant", "brain", "--tools"];
    let mut planned = Program::toolbridge(server, &arguments).arg(file);
    if let Some(record) = record {
        planned = planned.arg("--record").arg(record);
    }
    let mut phone = planned.start()?;
    phone.line("joined as phone").await?;
    Ok(phone)
}

async fn call(server: &Server, room: &str, arguments: &[&str]) -> anyhow::Result<Output> {
    let all = [&["call", "--room", room, "--identity", "brain", "--to", "phone"], arguments].concat();
    Program::toolbridge(server, &all).run().await
}

/// A phone's recording of three calls of `toolbridge call`.
async fn recorded(server: &Server, room: &str) -> anyhow::Result<PathBuf> {
    let file = tools_file(&format!("{room}-file"), &[])?.with_file_name("session.mcap");
    let phone = phone(server, room, PROGRAMS, Some(&file)).await?;
    for arguments in [&["where_is"][..], &["echo", r#"{"n": 1, "text": "grüß dich"}"#], &["fail"]] {
        let output = call(server, room, arguments).await?;
        ensure!(output.code == Some(i32::from(arguments[0] == "fail")), "{output:?}");
    }
    phone.interrupt()?;
    let output = phone.finish().await?;
    // The stderr of a failed tool stays with its owner.
    let failed = output.stderr.lines().collect::<Vec<_>>();
    let is_told =
        failed.len() == 1 && failed[0].starts_with("│ fail failed: ") && failed[0].contains("it is dark");
    ensure!(output.code == Some(0) && is_told, "{output:?}");
    Ok(file)
}

/// Starts `toolbridge replay FILE` with these options.
fn replay(server: &Server, file: &Path, room: &str, options: &[&str]) -> crate::program::Planned {
    let all = [&["replay", "--room", room], options].concat();
    Program::toolbridge(server, &all).arg(file)
}

/// Starts the cassette in place of the phone.
async fn cassette(server: &Server, file: &Path, room: &str, options: &[&str]) -> anyhow::Result<Program> {
    let all = [&["--as", "client", "--identity", "phone", "--assistant", "brain"], options].concat();
    replay(server, file, room, &all).start()
}

async fn recorded_client_serves_a_live_assistant_and_misses_exit_with_status_3() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "replay-cassette");
    let file = recorded(&server, room).await?;
    let again = file.with_file_name("again.mcap");

    let mut tape = cassette(&server, &file, room, &["--record", again.to_str().unwrap_or_default()]).await?;
    tape.line("joined as phone").await?;
    tape.line("3 recorded calls can be answered").await?;
    let output = call(&server, room, &["where_is"]).await?;
    ensure!(output.code == Some(0) && output.stdout == "{\"room\":\"kitchen\"}\n", "{output:?}");
    // Keys in another order, and another spelling of the number.
    let output = call(&server, room, &["echo", r#"{"text": "grüß dich", "n": 1.0}"#]).await?;
    ensure!(
        serde_json::from_str::<Value>(&output.stdout)? == json!({"n": 1, "text": "grüß dich"}),
        "{output:?}"
    );
    let output = call(&server, room, &["fail"]).await?;
    ensure!(output.code == Some(1) && output.stderr.contains("execution_error: "), "{output:?}");
    ensure!(output.stderr.contains("it is dark"), "{output:?}");
    tape.interrupt()?;
    let output = tape.finish().await?;
    ensure!(output.code == Some(0) && output.stderr.is_empty(), "{output:?}");
    ensure!(
        output.stdout.ends_with("3 calls answered, 0 not recorded; 0 recorded calls not used\n"),
        "{output:?}"
    );
    // The cassette's own recording is as good as the first.
    let output =
        replay(&server, &again, room, &["--as", "assistant", "--json", "--allow", "echo"]).run().await?;
    let plan: Value = serde_json::from_str(&output.stdout)?;
    ensure!(output.code == Some(2) && plan["calls"].as_array().is_some_and(|it| it.len() == 3), "{output:?}");

    let tape = cassette(&server, &file, room, &["--timing", "fast", "--json"]).await?;
    for (n, code) in [(1, 0), (2, 1)] {
        let output = call(&server, room, &["where_is"]).await?;
        ensure!(output.code == Some(code), "call {n}: {output:?}");
    }
    let output = call(&server, room, &["echo", r#"{"n": 2}"#]).await?;
    ensure!(output.code == Some(1) && output.stderr.contains("not_recorded: "), "{output:?}");
    tape.interrupt()?;
    let output = tape.finish().await?;
    ensure!(output.code == Some(3) && output.stdout.lines().count() == 1, "{output:?}");
    let told: Value = serde_json::from_str(&output.stdout)?;
    ensure!(
        (&told["answered"], &told["missed"], &told["left"]) == (&json!(1), &json!(2), &json!(2)),
        "{told}"
    );
    ensure!(told["misses"][0]["tool"] == "where_is" && told["misses"][0]["reason"] == "used_up", "{told}");
    ensure!(told["misses"][1]["reason"] == "nothing_alike", "{told}");

    let mut tape = cassette(&server, &file, room, &["--loose"]).await?;
    for _ in 0..3 {
        let output = call(&server, room, &["where_is"]).await?;
        ensure!(output.code == Some(0), "{output:?}");
    }
    let output = call(&server, room, &["echo"]).await?;
    ensure!(output.code == Some(1), "{output:?}");
    tape.line("echo: not_recorded: the recording has no call with these parameters").await?;
    tape.interrupt()?;
    ensure!(tape.finish().await?.code == Some(3));
    Ok(())
}

async fn live_clients_are_called_again_and_differences_exit_with_status_3() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "replay-again");
    let file = recorded(&server, room).await?;
    let ask = |options: &[&str]| {
        let all = [
            &["--as", "assistant", "--identity", "brain", "--to", "phone", "--live", "--speed", "max"],
            options,
        ];
        replay(&server, &file, room, &all.concat()).run()
    };
    let same = phone(&server, room, PROGRAMS, None).await?;
    let output = ask(&["--allow", "where_is", "--allow", "echo", "--allow", "fail"]).await?;
    ensure!(output.code == Some(0), "{output:?}");
    ensure!(output.stdout == "3 calls asked, 3 outcomes compared, 0 differences\n", "{output:?}");
    ensure!(
        output.stderr.contains("live: repeating calls with clients in the room \"replay-again\""),
        "{output:?}"
    );
    ensure!(!output.stderr.contains('\r'), "no bar where no terminal is: {output:?}");
    let output = ask(&["--allow", "where_is", "--json"]).await?;
    let told: Value = serde_json::from_str(&output.stdout)?;
    ensure!((&told["asked"], output.code) == (&json!(1), Some(0)), "{output:?}");
    ensure!(told["not_asked"].as_array().is_some_and(|it| it.len() == 2), "{told}");
    same.interrupt()?;
    same.finish().await?;

    let changed = phone(&server, room, CHANGED, None).await?;
    let output = ask(&["--allow", "where_is", "--allow", "echo", "--allow", "fail"]).await?;
    ensure!(output.code == Some(3), "{output:?}");
    ensure!(output.stdout.starts_with("3 calls asked, 3 outcomes compared, 2 differences\n"), "{output:?}");
    ensure!(output.stdout.contains(r#""result.room": expected "kitchen", got "cellar""#), "{output:?}");
    ensure!(output.stdout.contains(r#""outcome": expected "execution_error: "#), "{output:?}");
    changed.interrupt()?;
    let output = changed.finish().await?;
    ensure!(output.stdout.matches("brain called ").count() == 3, "{output:?}");
    Ok(())
}

/// The same file, as the tools of a client in a library user's program.
async fn recorded_client_serves_a_library_user() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "replay-own");
    let file = recorded(&server, room).await?;
    let cassette = Cassette::open(&file)?.fast();
    let offered = toolbridge::Client::builder().tools(cassette.clone()).assistant("brain");
    let _phone = client(&server, room, "phone", offered).await?;
    let brain = assistant(&server, room, "brain", Assistant::builder().client("phone")).await?;
    let place = soon("the answer", brain.call("where_is", ()).start()).await??;
    ensure!(place.to_json() == json!({"room": "kitchen"}));
    let failed = soon("the failure", brain.call("fail", ()).start()).await?;
    ensure!(matches!(failed, Err(CallError::Tool(_))), "{failed:?}");
    ensure!((cassette.missed(), cassette.left()) == (0, 1));
    Ok(())
}

async fn ctrl_c_of_a_cassette_says_goodbye() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "replay-cassette-ctrl-c");
    let file = recorded(&server, room).await?;
    let tape = cassette(&server, &file, room, &[]).await?;
    let brain = Assistant::builder().client("phone").configure(patient);
    let brain = assistant(&server, room, "brain", brain).await?;
    soon("the answer", brain.call("where_is", ()).start()).await??;
    tape.interrupt()?;
    let output = tape.finish().await?;
    ensure!(output.code == Some(0) && output.stderr.is_empty(), "{output:?}");
    nothing_offered(&brain).await?;
    Ok(())
}

async fn ctrl_c_of_a_replay_stops_open_calls_and_says_goodbye() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "replay-again-ctrl-c");
    let file = recorded(&server, room).await?;
    let slow = [("where_is", "exec /bin/sleep 60"), ("echo", "cat"), ("fail", "cat")];
    let mut phone = phone(&server, room, &slow, None).await?;
    let options =
        ["--as", "assistant", "--identity", "brain", "--to", "phone", "--live", "--allow", "where_is"];
    let asking = replay(&server, &file, room, &options).start()?;
    phone.line("brain called where_is").await?;
    asking.interrupt()?;
    let output = asking.finish().await?;
    ensure!(output.code == Some(130) && output.stdout.is_empty(), "{output:?}");
    phone.line("where_is: cancelled after ").await?;
    phone.line("not bound to an assistant").await?;
    Ok(())
}

async fn replay_fails_when_its_room_is_deleted() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "replay-deleted");
    let file = recorded(&server, room).await?;
    let slow = [("where_is", "exec /bin/sleep 60 0"), ("echo", "cat"), ("fail", "cat")];
    let mut phone = phone(&server, room, &slow, None).await?;
    let options =
        ["--as", "assistant", "--identity", "brain", "--to", "phone", "--live", "--allow", "where_is"];
    let asking = replay(&server, &file, room, &options).start()?;
    phone.line("brain called where_is").await?;
    // A client that is removed, too, may say goodbye before the assistant learns of its own removal.
    phone.signal(Signal::STOP)?;
    server.room_service("DeleteRoom", room, json!({"room": room})).await?;
    let output = asking.finish().await?;
    ensure!(output.code == Some(1), "{output:?}");
    ensure!(output.stdout.starts_with("1 call asked, 0 outcomes compared, 0 differences"), "{output:?}");
    Ok(())
}

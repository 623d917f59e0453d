//! Clients and assistants without toolbridge, over the official SDKs.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use toolbridge::{Assistant, CallError, Client};

use crate::{
    ends::{assistant, client, double, hang, unhurried},
    program::{Program, missing_for},
    server::{Server, shared},
    trial_with,
};

/// The number of calls of the test for leftover state.
const MANY: usize = 5_000;

/// The number of cancelled calls of the same test.
const STOPS: usize = 100;

/// The time limit for this many calls; their speed is measured elsewhere.
const MANY_TAKE: Duration = Duration::from_secs(300);

/// The programs in browsers: a role of one page, for `/rtc/v1` and for `/rtc`.
const BROWSERS: [(&str, &str, &str); 2] = [
    ("a_browser", "browser.mjs client", "browser.mjs assistant"),
    (
        "a_browser_with_two_connections",
        "browser.mjs client --two-connections",
        "browser.mjs assistant --two-connections",
    ),
];

/// The programs over an older SDK, which uses two peer connections.
const OLDER: (&str, &str, &str) = ("python_1_0", "older/client.py", "older/assistant.py");

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    let programs = [("python", "client.py", "assistant.py"), ("node", "client.mjs", "assistant.mjs")];
    for (language, client, assistant) in programs.into_iter().chain(BROWSERS).chain([OLDER]) {
        let makes_many = programs.iter().any(|(same, ..)| *same == language);
        let mut add = |name: &str, test: fn(&'static str) -> Test, program: &'static str| {
            let name = format!("peers::{name}_{language}");
            trials.push(trial_with(&name, move || missing_for(program), move || test(program)));
        };
        if makes_many {
            add("five_thousand_calls_to_a_client_in", |it| Box::pin(many_calls_to(it)), client);
            add("five_thousand_calls_by_an_assistant_in", |it| Box::pin(many_calls_by(it)), assistant);
        }
        add("toolbridge_assistant_calls_a_client_in", |it| Box::pin(calls_to(it)), client);
        add("toolbridge_client_is_called_by_an_assistant_in", |it| Box::pin(calls_by(it)), assistant);
        add("client_that_joined_first_is_called_in", |it| Box::pin(there_first(it)), client);
    }
    trials
}

type Test = std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;

/// Starts an SDK client in the room.
async fn their_client(server: &Server, room: &str, program: &str) -> anyhow::Result<Program> {
    let token = server.key().client(room, "phone").sign()?;
    let mut peer = Program::peer(server, &token, program, &[])?.start()?;
    peer.event("ready").await?;
    Ok(peer)
}

/// Returns what an SDK assistant printed about each of its calls.
async fn their_calls(
    server: &Server,
    room: &str,
    program: &str,
    arguments: &[&str],
) -> anyhow::Result<Vec<Value>> {
    let token = server.key().assistant(room, "assistant").sign()?;
    let planned = Program::peer(server, &token, program, arguments)?;
    let output = planned.start()?.finish_within(MANY_TAKE).await?;
    ensure!(output.code == Some(0), "{output:?}");
    let lines = output.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let results: Vec<_> = lines.filter(|line| line["event"] == "result").collect();
    ensure!(
        !output.stdout.contains("\"stray\""),
        "a result arrived twice or without a request: {}",
        output.stdout
    );
    Ok(results)
}

async fn calls_to(program: &str) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("to-{program}"));
    let brain = assistant(&server, &room, "assistant", Assistant::builder()).await?;
    let _phone = their_client(&server, &room, program).await?;
    answers(&brain).await
}

/// LiveKit has to announce the caller before such a client can reply: it gets no request earlier.
async fn there_first(program: &str) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("first-{program}"));
    let _phone = their_client(&server, &room, program).await?;
    let began = Instant::now();
    let brain = assistant(&server, &room, "assistant", Assistant::builder()).await?;
    let level = brain.call("get_battery", ()).to("phone").await?;
    println!("{program} was there first: join to result {:?}", began.elapsed());
    ensure!(level.to_json() == json!({"level": 0.8}));
    Ok(())
}

pub(crate) async fn answers(brain: &Assistant) -> anyhow::Result<()> {
    let level = brain.call("get_battery", ()).to("phone").await?;
    ensure!(level.to_json() == json!({"level": 0.8}), "{:?}", level.to_json());

    let said = json!({
        "text": "grüß dich 👋", "empty": {}, "list": [1, -2, 2.5, null, true, "x"], "large": 9_007_199_254_740_991_u64,
        "deep": {"a": {"b": [{"c": "d"}]}}, "long": "x".repeat(5_000)
    });
    let heard = brain.call("echo", &said).to("phone").await?;
    ensure!(heard.to_json() == said, "{}", heard.to_json());

    match brain.call("fail", ()).to("phone").await {
        Err(CallError::Tool(error)) => {
            ensure!(error.code().as_str() == "out_of_range");
            ensure!(error.message() == "the watch is out of range", "{error:?}");
        }
        other => bail!("{other:?}"),
    }
    let unknown = brain.call("fly", ()).to("phone").await;
    ensure!(matches!(&unknown, Err(CallError::UnknownTool { tool, .. }) if &**tool == "fly"), "{unknown:?}");

    let limit = Duration::from_millis(500);
    let silent = brain.call("hang", ()).to("phone").timeout(limit).await;
    ensure!(matches!(silent, Err(CallError::Timeout { limit: named }) if named == limit), "{silent:?}");
    ensure!(brain.open_calls() == 0);
    Ok(())
}

async fn many_calls_to(program: &str) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("many-to-{program}"));
    let brain = assistant(&server, &room, "assistant", Assistant::builder()).await?;
    let _phone = their_client(&server, &room, program).await?;
    brain.call("get_battery", ()).to("phone").await?;

    let began = Instant::now();
    let mut open = JoinSet::new();
    for n in 0..MANY {
        if open.len() == 32 {
            open.join_next().await.context("no call is open")???;
        }
        let call = brain.call("echo", json!({"n": n})).to("phone");
        open.spawn(async move {
            let answer = call.await?.to_json();
            ensure!(answer == json!({"n": n}), "call {n} has the result {answer}");
            Ok(())
        });
    }
    while let Some(ended) = open.join_next().await {
        ended??;
    }
    let took = began.elapsed();
    println!("{MANY} calls to {program}: {took:?}");
    ensure!(took < MANY_TAKE, "{took:?}");

    for _ in 0..STOPS {
        let mut call = brain.call("hang", ()).to("phone").start();
        call.cancel();
        ensure!(matches!(call.await, Err(CallError::Cancelled)));
    }
    brain.call("get_battery", ()).to("phone").await?;
    ensure!(brain.open_calls() == 0 && brain.open_jobs() == 0);
    let stats = brain.stats();
    ensure!(stats.named("calls") == (MANY + STOPS + 2) as u64, "{stats:?}");
    for kind in ["late", "not_permitted", "duplicate", "malformed", "unauthorized"] {
        ensure!(stats.named(kind) == 0, "{stats:?}");
    }
    Ok(())
}

async fn calls_by(program: &str) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("by-{program}"));
    let ours = Client::builder().tool("double", "", double).tool("hang", "", hang);
    let phone = client(&server, &room, "phone", ours).await?;
    for (tool, arguments, body) in [
        ("double", r#"{"n": 21}"#, json!({"success": true, "result": {"value": 42}})),
        ("treble", "{}", json!({"success": false, "errorCode": "unknown_tool"})),
        ("double", r#"{"n": "many"}"#, json!({"success": false, "errorCode": "invalid_parameters"})),
    ] {
        let results =
            their_calls(&server, &room, program, &["phone", tool, arguments, "--count", "2"]).await?;
        ensure!(results.len() == 2, "{results:?}");
        for result in results {
            for (key, value) in body.as_object().context("not a map")? {
                ensure!(result["body"][key] == *value, "{tool}: {result}");
            }
            ensure!(result["body"]["id"] == result["id"] && result["body"]["requestId"] == result["id"]);
        }
    }
    let late = ["phone", "hang", "{}", "--timeout-ms", "300"];
    let results = their_calls(&server, &room, program, &late).await?;
    ensure!(results[0]["body"]["errorCode"] == "timeout", "{results:?}");
    ensure!(
        results[0]["body"]["errorMessage"].as_str().context("no text")?.contains("300 ms"),
        "{results:?}"
    );
    ensure!(phone.open_jobs() == 0);
    Ok(())
}

async fn many_calls_by(program: &str) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("many-by-{program}"));
    let ours = Client::builder().configure(unhurried).tool("double", "", double).tool("hang", "", hang);
    let phone = client(&server, &room, "phone", ours).await?;
    let began = Instant::now();
    let count = MANY.to_string();
    let results =
        their_calls(&server, &room, program, &["phone", "double", r#"{"n": 4}"#, "--count", &count]).await?;
    let took = began.elapsed();
    println!("{MANY} calls by {program}, one after the other, with its start: {took:?}");
    ensure!(took < MANY_TAKE && results.len() == MANY, "{} in {took:?}", results.len());
    ensure!(results.iter().all(|it| it["body"]["result"] == json!({"value": 8})));

    let stops = STOPS.to_string();
    let results =
        their_calls(&server, &room, program, &["phone", "hang", "{}", "--stop", "--count", &stops]).await?;
    ensure!(results.len() == STOPS && results.iter().all(|it| it["body"]["errorCode"] == "cancelled"));
    ensure!(phone.open_jobs() == 0 && phone.open_calls() == 0);
    let stats = phone.stats();
    for kind in ["busy", "not_permitted", "duplicate", "malformed", "unauthorized"] {
        ensure!(stats.named(kind) == 0, "{stats:?}");
    }
    Ok(())
}

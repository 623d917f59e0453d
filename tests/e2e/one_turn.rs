//! One turn of a voice assistant with a tool of every kind: a function, a program, an MCP server, a RAP toolset and an ACP
//! agent, with a permission and a barge-in. Recorded, checked, run again, and shown in a report.

use std::{env, fs};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tokio::{process::Command, sync::mpsc};
use toolbridge::{
    Assistant, CallError, Client, Event, ToolError, ToolResult,
    adapter::{acp, mcp},
    programs::ProgramTools,
    prompt::{Prompt, PromptAnswer, PromptRequest},
    recording::{self, Recording},
    replay::Replay,
};

use crate::{
    acp_agent,
    ends::{event, pair},
    mcp::{everything, missing as missing_mcp},
    program::{folder, script, tools_file},
    rap_toolset::{Toolset, tool},
    server::shared,
    soon, trial_with,
};

pub(crate) fn trials() -> Vec<Trial> {
    let missing = || missing_mcp().or_else(acp_agent::missing);
    vec![trial_with("one_turn::turn_with_tools_of_every_kind_is_recorded_and_shown", missing, one_turn)]
}

async fn get_battery() -> Result<f64, ToolError> {
    Ok(0.8)
}

/// Returns the settled calls' tools and outcomes, up to the call of this tool with this outcome.
async fn settled(events: &mut toolbridge::Events, last: (&str, &str)) -> anyhow::Result<Vec<String>> {
    let mut all = Vec::new();
    event(events, last.0, |event| {
        let Event::Settled { tool, outcome, .. } = event else { return None };
        let outcome = outcome.map_or_else(|code| code.to_string(), |()| "ok".to_owned());
        all.push(format!("{tool} {outcome}"));
        ((tool.as_str(), outcome.as_str()) == last).then_some(())
    })
    .await?;
    Ok(all)
}

async fn one_turn() -> anyhow::Result<()> {
    let server = shared()?;
    let place = folder("one-turn")?;
    let file = place.join("turn.mcap");
    let programs = ProgramTools::from_file(tools_file("one-turn-programs", &[("count_words", "wc -w")])?)?;
    let toolset = Toolset::of(json!([tool("deploy", json!({"description": "Deploys the app"}))])).await;
    let agent = acp::stdio([script().as_os_str().to_str().context("not UTF-8")?, "run", "acp/agent.py"])
        .name("coder");

    let (to_test, mut asked) = mpsc::unbounded_channel();
    let prompts = move |request: PromptRequest| {
        let _ = to_test.send(request.prompt().clone());
        async move { Ok::<_, ToolError>(PromptAnswer::selected("o-allow_once")) }
    };
    let phone = Client::builder().tool("get_battery", "Battery level, 0 to 1", get_battery).prompt(prompts);
    let brain = Assistant::builder()
        .tools(programs)
        .tools(mcp::stdio(["node", everything()?, "stdio"]).name("everything").await?)
        .tools(toolset.source().await?)
        .tools(agent.await?)
        .consent(|_| async { true })
        .record(&file);
    let (phone, brain) = pair(&server, "one-turn", phone, brain).await?;
    let mut seen = phone.events();
    brain.ready("phone").await?;

    let turn = brain.turn();
    let level: f64 = turn.call("get_battery", ()).await?.decode()?;
    ensure!(level > 0.7, "{level}");
    turn.call("count_words", json!({"text": "one two three"})).await?;
    let said = turn.call("echo", json!({"message": "hello"})).await?;
    ensure!(ToolResult::of(&said).for_model(100).text.contains("hello"), "{said:?}");

    let deploy = turn.call("deploy", ()).start();
    let patch = "--- a/app.toml\n+++ b/app.toml\n@@ -1 +1 @@\n-replicas = 1\n+replicas = 3\n";
    let answer = json!({"text": "Deployed 3 replicas.", "display_as": [
        {"type": "diff", "content": {"path": "app.toml", "patch": patch}},
        {"type": "text", "content": "app.toml: 1 line"},
    ]});
    ensure!(toolset.invocation().await.say("tool_result", answer).await == 200, "the callback was refused");
    let deployed = ToolResult::of(&soon("deploy", deploy).await??);
    ensure!(deployed.for_model(100).text == "Deployed 3 replicas.", "{deployed:?}");
    ensure!(deployed.display().len() == 2, "{deployed:?}");

    let worked = turn.call("coder", json!({"prompt": "call c1\nplan\npermit execute\nsay Done."}));
    let worked = ToolResult::of(&soon("the agent", worked.into_future()).await??);
    ensure!(worked.for_model(1_000).text.contains("permit: o-allow_once"), "{worked:?}");
    let Some(Prompt::Permission(question)) = asked.recv().await else {
        anyhow::bail!("no permission was asked")
    };
    ensure!(question.text.as_deref().is_some_and(|text| text.starts_with("coder")), "{question:?}");

    let mut steps = brain.events();
    let mut waits = turn.call("coder", json!({"prompt": "call c2\nwait"})).start();
    event(&mut steps, "the end of the second step", |event| {
        let Event::Settled { tool, .. } = event else { return None };
        (tool == "Edit_main.rs").then_some(())
    })
    .await?;
    turn.barge_in();
    let cut = soon("the barge-in", &mut waits).await?;
    ensure!(matches!(cut, Err(CallError::Cancelled)), "{cut:?}");

    let all = settled(&mut seen, ("coder", "cancelled")).await?;
    for wanted in ["count_words ok", "echo ok", "deploy ok", "coder ok"] {
        ensure!(all.iter().any(|it| it == wanted), "{wanted}: {all:?}");
    }
    let steps = all.iter().filter(|it| *it == "Edit_main.rs ok").count();
    ensure!(steps == 2, "the agent's own steps are calls of the room: {all:?}");
    drop(turn);
    phone.close().await;
    brain.close().await;

    let entries: Vec<_> = Recording::open(&file)?.entries().collect();
    let checked = recording::check(entries.clone());
    ensure!(checked.errors == 0, "{:?}", checked.findings);
    let replayed = Replay::dry(entries)?;
    ensure!(replayed.is_same(), "{replayed:#?}");
    let page = place.join("turn.html");
    let mut report = Command::new(env!("CARGO_BIN_EXE_toolbridge"));
    let report =
        soon("the report", report.arg("report").arg(&file).arg("--output").arg(&page).output()).await??;
    ensure!(report.status.success(), "{report:?}");
    let html = fs::read_to_string(&page)?;
    check(&html)?;
    if let Some(kept) = env::var_os("TOOLBRIDGE_KEEP_TURN") {
        fs::copy(&page, kept)?;
    }
    Ok(())
}

/// Checks that the report has the calls of the turn with their outcomes, what a person sees of a result, and the agent's plan.
fn check(html: &str) -> anyhow::Result<()> {
    let data = html.split_once("id=\"data\">").and_then(|(_, rest)| rest.split_once("</script>"));
    let data: Value = serde_json::from_str(data.context("the report has no data")?.0)?;
    let list = |name: &str| data[name].as_array().cloned().unwrap_or_default();
    let texts = list("texts");
    let text =
        |place: &Value| place.as_u64().and_then(|at| texts.get(at as usize)).unwrap_or(&Value::Null).clone();
    // A call has its tool in column 1, and the code of its failure in column 10.
    let calls: Vec<_> = list("calls").iter().map(|call| (text(&call[1]), text(&call[10]))).collect();
    let ok = Value::Null;
    for (tool, outcome, count) in [
        ("get_battery", &ok, 1),
        ("count_words", &ok, 1),
        ("echo", &ok, 1),
        ("deploy", &ok, 1),
        ("coder", &ok, 1),
        ("coder", &json!("cancelled"), 1),
        ("Edit_main.rs", &ok, 2),
        ("bridge.permission", &ok, 1),
    ] {
        let found = calls.iter().filter(|call| call.0 == tool && call.1 == *outcome).count();
        ensure!(found == count, "{found} calls of {tool} with {outcome}: {calls:?}");
    }
    let results: Vec<_> = list("frames").iter().map(|frame| frame[12].to_string()).collect();
    for text in ["+replicas = 3", "/srv/app/main.rs", "Deployed 3 replicas."] {
        ensure!(results.iter().any(|result| result.contains(text)), "no {text} in {results:?}");
    }
    let views = data["views"].to_string();
    ensure!(views.contains("coder/plan") && views.contains("→ Look around"), "{views}");
    Ok(())
}

//! Tests an app against a recorded session: the session must send the recorded frames, and the tools must return the
//! recorded results.
//!
//! ```sh
//! cargo run --example recorded
//! ```

use std::{env, fs, path::Path, time::Duration};

use serde::{Deserialize, Serialize};
use toolbridge::{
    Assistant, Client, ToolContext, ToolError, ToolSource, Tools, Value,
    frame::{Frame, Message},
    memory,
    recording::{Direction, Happened, RecordedOutcome, Recording, calls, check},
    replay::Replay,
};

#[derive(Deserialize, schemars::JsonSchema)]
struct Tip {
    bill: u32,
    percent: u32,
}

#[derive(Serialize)]
struct Sum {
    cents: u32,
}

async fn tip(tip: Tip) -> Result<Sum, ToolError> {
    Ok(Sum { cents: tip.bill * tip.percent / 100 })
}

fn tools() -> Tools<()> {
    Tools::new().tool("tip", "What to give, in cents", tip)
}

/// A test that replays the recorded session.
fn session_replays_without_differences(file: &Path) -> anyhow::Result<()> {
    let report = Replay::dry(Recording::open(file)?.entries())?;
    anyhow::ensure!(report.is_same(), "{report}");
    anyhow::ensure!(check(Recording::open(file)?.entries()).errors == 0);
    let calls = calls(Recording::open(file)?.entries()).calls;
    anyhow::ensure!(calls.iter().all(|call| call.outcome == RecordedOutcome::Ok), "{calls:?}");
    println!("{} frames are the same", report.compared);
    Ok(())
}

/// A test that passes the recorded arguments to the current tools.
async fn tools_return_the_recorded_results(file: &Path) -> anyhow::Result<()> {
    let (mut asked, mut answers) = (Vec::new(), 0);
    for entry in Recording::open(file)?.entries() {
        let Happened::Packet(packet) = entry.what else { continue };
        match (packet.direction, Frame::decode(packet.payload)?.message()?) {
            (Direction::Heard, Message::ToolUseRequest(request)) => asked.push(request),
            (Direction::Sent, Message::ToolUseResult(then)) => {
                let Some(request) = asked.iter().find(|request| request.id == then.id) else { continue };
                let context = ToolContext::new("a test", Duration::from_secs(5));
                let now =
                    tools().execute(&request.tool_name.parse()?, request.parameters.clone(), context).await;
                anyhow::ensure!(
                    now.ok().as_ref().map(Value::to_json) == then.result.as_ref().map(Value::to_json)
                );
                answers += 1;
            }
            _ => {}
        }
    }
    println!("{answers} answers are the same");
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let folder = env::temp_dir().join(format!("toolbridge-recorded-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let file = folder.join("session.mcap");

    // Recorded once, with the current app; the file is then kept next to the tests.
    let room = memory::MemoryRoom::new();
    let phone = Client::builder().tools(tools()).record(&file).join_over(room.client("phone")).await?;
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await?;
    for bill in [1_200, 4_500, 800] {
        assistant.call("tip", serde_json::json!({"bill": bill, "percent": 10})).await?;
    }
    assistant.close().await;
    phone.close().await;

    session_replays_without_differences(&file)?;
    tools_return_the_recorded_results(&file).await?;
    Ok(fs::remove_dir_all(&folder)?)
}

//! An assistant that calls the tools of `examples/client.rs`: a call in one line, every failure in one flat
//! match, progress of a long one.
//!
//! ```sh
//! LIVEKIT_URL=ws://127.0.0.1:7880 LIVEKIT_TOKEN=$(toolbridge token --room r --identity assistant --role assistant) \
//!     cargo run --example assistant
//! ```

use std::{env, time::Duration};

use serde::Deserialize;
use serde_json::json;
use toolbridge::{Assistant, CallError, ErrorCode};

#[derive(Debug, Deserialize)]
struct Battery {
    level: f32,
    charging: bool,
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::main]
#[expect(clippy::disallowed_methods, reason = "an example owns its tasks")]
async fn main() -> anyhow::Result<()> {
    let ctrl_c = tokio::spawn(tokio::signal::ctrl_c()); // before the join, so that a Ctrl-C during it is not lost
    let assistant = Assistant::builder().join(&env::var("LIVEKIT_URL")?, &env::var("LIVEKIT_TOKEN")?).await?;
    let result = tokio::select! {
        biased;
        _ = ctrl_c => Ok(()), // dropping the open call cancels it
        result = calls(&assistant) => result,
    };
    assistant.close().await; // sends a goodbye, also after a failure
    result
}

async fn calls(assistant: &Assistant) -> anyhow::Result<()> {
    let battery: Battery = assistant.call("get_battery", ()).to("phone").timeout(secs(5)).await?.decode()?;
    println!("{:.0} %, charging: {}", 100.0 * battery.level, battery.charging);

    let text = match assistant.call("find_contact", json!({"name": "Ada"})).await {
        Ok(result) => result.decode::<String>()?,
        Err(CallError::Tool(error)) if error.code() == ErrorCode::PERMISSION_DENIED => "you said no".into(),
        Err(CallError::Tool(error)) => format!("the phone says: {error}"),
        Err(CallError::UnknownTool { .. }) => "no phone here".into(),
        Err(CallError::Ambiguous { owners, .. }) => format!("which one? {owners:?}"),
        Err(CallError::NotDelivered { .. }) => "not delivered: nothing ran, so it is safe to retry".into(),
        Err(CallError::Timeout { limit }) => format!("no answer in {limit:?}; it may have run"),
        Err(CallError::Lost { owner, .. }) => format!("{owner} left; it may have run"),
        Err(other) => return Err(other.into()), // cancelled, too large, closed, arguments
    };
    println!("{text}");

    let mut call = assistant.call("export_album", json!({"album": "Rome"})).start();
    while let Some(progress) = call.progress().await {
        println!("{progress}");
    }
    println!("{} photos", call.await?.decode::<usize>()?); // dropping `call` instead would have cancelled it
    Ok(())
}

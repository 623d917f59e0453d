//! The user programs that the public API promises, as a user writes them in his own tests.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use toolbridge::{Assistant, CallError, Client, ErrorCode, State, ToolContext, ToolError, Tools, memory};

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

type Db = BTreeMap<&'static str, &'static str>;

#[derive(Deserialize, JsonSchema)]
struct Find {
    /// Part of a name
    name: String,
}

async fn find_contact(State(db): State<Arc<Db>>, find: Find) -> Result<String, ToolError> {
    Ok((*db.get(find.name.as_str()).ok_or("nobody of that name")?).to_owned())
}

async fn sleep_an_hour(cx: ToolContext) -> Result<(), ToolError> {
    cx.progress("asleep");
    tokio::time::sleep(secs(3_600)).await;
    Ok(())
}

fn tools() -> Tools<Arc<Db>> {
    Tools::with_state(Arc::new(Db::from([("Ada", "1815")])))
        .tool("find_contact", "Phone number of a contact", find_contact)
        .tool("sleep_an_hour", "Sleeps", sleep_an_hour)
}

#[tokio::test]
async fn arguments_are_checked() {
    let error = tools().call("find_contact", json!({"nam": "Ada"})).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::INVALID_PARAMETERS);
}

#[tokio::test(start_paused = true)] // an hour passes in no time
async fn a_phone_that_leaves() -> anyhow::Result<()> {
    let room = memory::Room::new();
    let _phone = Client::builder().tools(tools()).join_over(room.client("phone")).await?;
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await?;
    let late = assistant.call("sleep_an_hour", ()).timeout(secs(30)).await;
    assert!(matches!(late, Err(CallError::Timeout { .. })), "{late:?}");
    let mut open = assistant.call("sleep_an_hour", ()).start();
    assert!(open.progress().await.is_some()); // it runs: a request that never arrived is not `Lost`
    room.leave("phone"); // also: pause, resume, delay, lose (seeded)
    assert!(matches!(open.await, Err(CallError::Lost { .. })));
    Ok(())
}

//! Waiting for a client until its tools are known.

use std::time::Duration;

use toolbridge::{
    Assistant, Client, CloseReason, Ready, Role, ToolError,
    memory::MemoryRoom,
    session::SelectionPolicy,
    tools::{NotAdmitted, NotOffered, ReadyError},
    transport::{Participant, Transport as _, TransportEvent},
};

const SECOND: Duration = Duration::from_secs(1);

async fn one() -> Result<i32, ToolError> {
    Ok(1)
}

async fn assistant(room: &MemoryRoom) -> Assistant {
    Assistant::builder().join_over(room.assistant("a")).await.unwrap()
}

async fn phone(room: &MemoryRoom) -> Client {
    Client::builder().tool("t", "for a test", one).join_over(room.client("phone")).await.unwrap()
}

fn names(tools: &[toolbridge::Tool]) -> Vec<&str> {
    tools.iter().map(|tool| tool.name().as_str()).collect()
}

/// Returns the wait's outcome and its duration.
async fn waited(ready: Ready) -> (Result<Vec<toolbridge::Tool>, ReadyError>, Duration) {
    let began = tokio::time::Instant::now();
    (ready.await, began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn client_is_ready_when_its_tools_are_known() {
    let room = MemoryRoom::new();
    let a = assistant(&room).await;
    let waiting = tokio::spawn(a.ready("phone").into_future());
    tokio::time::sleep(4 * SECOND).await;
    let _phone = phone(&room).await;
    assert_eq!(names(&waiting.await.unwrap().unwrap()), ["t"]);
    // A call that names the client is sent at once.
    let n: i32 = a.call("t", ()).to("phone").timeout(SECOND).await.unwrap().decode().unwrap();
    assert_eq!(n, 1);
    let (again, took) = waited(a.ready("phone").within(Duration::ZERO)).await;
    assert!(again.is_ok() && took.is_zero());
}

#[tokio::test(start_paused = true)]
async fn silent_peer_is_ready_when_the_time_is_over() {
    let room = MemoryRoom::new();
    let a = assistant(&room).await;
    let _silent = room.join(|sid| Participant::new("plain", sid).can_update_metadata(false));
    for limit in [3 * SECOND, 10 * SECOND] {
        let (tools, took) = waited(a.ready("plain").within(limit)).await;
        assert!(tools.unwrap().is_empty());
        assert_eq!(took, limit);
    }
}

/// As a page whose script is slow: it is in the room long before it can answer.
#[tokio::test(start_paused = true)]
async fn client_that_is_slow_to_begin_is_not_ready_before_its_tools_are_known() {
    let room = MemoryRoom::new();
    let a = assistant(&room).await;
    let connected = room.client("phone");
    let waiting = tokio::spawn(a.ready("phone").into_future());
    tokio::time::sleep(7 * SECOND).await;
    let _phone = Client::builder().tool("t", "for a test", one).join_over(connected).await.unwrap();
    assert_eq!(names(&waiting.await.unwrap().unwrap()), ["t"]);
}

#[tokio::test(start_paused = true)]
async fn wait_that_times_out_reports_what_was_missing() {
    let room = MemoryRoom::named("hom");
    let a = assistant(&room).await;
    let (empty, took) = waited(a.ready("phone")).await;
    assert_eq!(took, 10 * SECOND);
    assert_eq!(empty.unwrap_err().to_string(), "room hom is empty: there is no participant; waited 10000 ms");
    let _desk = Client::builder().join_over(room.client("desk")).await.unwrap();
    let (unknown, took) = waited(a.ready("phnoe").within(2 * SECOND)).await;
    assert_eq!(took, 2 * SECOND);
    assert_eq!(
        unknown.unwrap_err().to_string(),
        "phnoe is not in the room; participants: desk; waited 2000 ms"
    );
    let _eye = room.observer("eye");
    let (observer, took) = waited(a.ready("eye")).await;
    let why = NotOffered::NotAdmitted {
        client: "eye".into(),
        offers: false,
        why: NotAdmitted::OtherRole { role: Role::Observer },
    };
    assert_eq!(
        observer.unwrap_err(),
        ReadyError::NotReady { client: "eye".into(), why, waited: 10 * SECOND }
    );
    assert!(took.is_zero(), "an observer never offers tools");
}

#[tokio::test(start_paused = true)]
async fn client_of_another_assistant_is_not_bound() {
    let room = MemoryRoom::new();
    let _other = Assistant::builder().join_over(room.assistant("other")).await.unwrap();
    let _phone = Client::builder()
        .assistant("other")
        .tool("t", "for a test", one)
        .join_over(room.client("phone"))
        .await
        .unwrap();
    let a = assistant(&room).await;
    let (result, took) = waited(a.ready("phone").within(4 * SECOND)).await;
    assert_eq!(result.unwrap_err(), ReadyError::NotBound { client: "phone".into() });
    assert_eq!(took, 4 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn wait_that_is_dropped_is_forgotten_and_one_after_the_end_is_closed() {
    let room = MemoryRoom::new();
    let a = assistant(&room).await;
    let dropped = tokio::time::timeout(SECOND, a.ready("plain").into_future()).await;
    assert!(dropped.is_err());
    // The wait was dropped, so no Configuration is sent to the client.
    let mut plain = room.join(|sid| Participant::new("plain", sid).can_update_metadata(false));
    let heard = async {
        loop {
            if let Some(TransportEvent::Packet(_)) = plain.recv().await {
                return;
            }
        }
    };
    assert!(tokio::time::timeout(5 * SECOND, heard).await.is_err());
    let waiting = tokio::spawn(a.ready("phone").into_future());
    tokio::task::yield_now().await;
    a.close().await;
    assert_eq!(waiting.await.unwrap().unwrap_err(), ReadyError::Closed(CloseReason::Closed));
    assert_eq!(a.ready("phone").await.unwrap_err(), ReadyError::Closed(CloseReason::Closed));
}

/// The function runs while the driver handles the session's outputs. What the session sends then needs no other wake-up.
#[tokio::test(start_paused = true)]
async fn call_whose_client_a_function_selects_is_sent_at_once() {
    let room = MemoryRoom::new();
    let watch = Client::builder().tool("t", "for a test", one).join_over(room.client("watch")).await.unwrap();
    let phone = phone(&room).await;
    let last = SelectionPolicy::by(|_, candidates| candidates.last().map(|it| it.identity.clone()));
    let a = Assistant::builder().choose(last).join_over(room.assistant("a")).await.unwrap();
    for client in ["phone", "watch"] {
        a.ready(client).await.unwrap();
    }
    tokio::time::sleep(SECOND).await; // on a paused clock: nothing is left to do
    let began = tokio::time::Instant::now();
    a.call("t", ()).await.unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO);
    drop((phone, watch));
}

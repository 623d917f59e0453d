//! Handles one call of a runtime, from its acceptance to the delivery of its result.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use serde_json::{Map, Value as Json, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{
    delivery::{Posted, deliver, post},
    invocation::{Callback, Invocation, Key},
    table::Table,
};
use crate::{
    CallError, ToolResult, Value,
    adapter::{
        rap::{address::Outgoing, result::RapResult},
        sink::{MAX_CALLS, Room},
    },
    tool::model_text,
    value::prefix,
};

/// The longest name of a tool in the log, in bytes: a runtime may send any.
const MAX_SHOWN: usize = 128;

/// The largest result that is sent, in bytes: the largest that a frame of the room carries.
const MAX_RESULT: usize = 16 * 1024 * 1024;

/// The most bytes of results that are on their way when a call begins. A callback that fails keeps a result for up to three
/// minutes.
const MAX_WAITING: usize = 64 * 1024 * 1024;

/// How long a result is sent, and sent again, whose call was cancelled: its runtime hardly waits for it.
const CANCELLED: Duration = Duration::from_secs(5);

/// What all calls of a toolset share.
pub(super) struct Calls {
    pub(super) room: Room,
    pub(super) table: Table,
    pub(super) outgoing: Outgoing,
    /// The toolset ends its calls. Their runtimes have not cancelled them.
    pub(super) is_closing: AtomicBool,
    pub(super) waiting: Waiting,
}

/// The bytes of the results that are on their way.
#[derive(Default)]
pub(super) struct Waiting(AtomicUsize);

impl Waiting {
    /// Whether so much waits that no further call may begin.
    pub(super) fn is_full(&self) -> bool {
        self.0.load(Ordering::Relaxed) > MAX_WAITING
    }

    /// Counts a result until the returned value is dropped.
    fn add(&self, bytes: usize) -> impl Drop + '_ {
        struct Counted<'a>(&'a AtomicUsize, usize);
        impl Drop for Counted<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(self.1, Ordering::Relaxed);
            }
        }
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Counted(&self.0, bytes)
    }
}

/// Runs a call that was accepted, and sends its result. A call that is cancelled ends, and its result is sent for 5 s.
pub(super) async fn run(calls: Arc<Calls>, invocation: Invocation, cancelled: CancellationToken) {
    let Invocation { key, callback, operation, arguments } = invocation;
    let shown = operation.as_deref().map(|name| prefix(name, MAX_SHOWN).to_owned());
    let _open = Open { table: &calls.table, key: &key };
    // Nobody would get the result, so nothing runs.
    if let Err(error) = calls.outgoing.look_up(&callback.target).await {
        tracing::warn!(operation = shown, %error, "a RAP call did not run: its callback cannot be used");
        return;
    }
    let result = called(&calls.room, operation.as_deref(), arguments, &cancelled).await;
    let body = message(&key, &callback, &result);
    let _waiting = calls.waiting.add(body.len());
    let was_cancelled = cancelled.is_cancelled();
    let mut delivery = pin!(deliver(|| post(&calls.outgoing, &callback.target, body.clone())));
    let posted = if was_cancelled {
        let late = |_| Posted::Failed("no answer in time".to_owned());
        timeout(CANCELLED, delivery).await.unwrap_or_else(late)
    } else {
        match cancelled.run_until_cancelled(&mut delivery).await {
            Some(posted) => posted,
            // The toolset is closed. Its calls have some time to deliver what they have.
            None if calls.is_closing.load(Ordering::Relaxed) => delivery.await,
            None => Posted::Refused("the runtime cancelled the call".to_owned()),
        }
    };
    match posted {
        Posted::Received => {}
        Posted::Refused(reason) | Posted::Failed(reason) => {
            let host = callback.target.host();
            tracing::warn!(%host, operation = shown, %reason, "the result of a RAP call could not be delivered");
        }
    }
}

/// A call that is open, until it is dropped.
struct Open<'a> {
    table: &'a Table,
    key: &'a Key,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.table.end(self.key.clone());
    }
}

/// Calls the tool, and returns its result or its failure.
async fn called(
    room: &Room,
    operation: Option<&str>,
    arguments: Json,
    cancelled: &CancellationToken,
) -> RapResult {
    let Some(operation) = operation else {
        return failed(
            "the call names no tool: `operation` has to be the name of one of the toolset's tools. Nothing ran.",
        );
    };
    let Some(_permit) = room.begin_call() else {
        return failed(&format!(
            "{MAX_CALLS} calls are open already. Call again when one has ended. Nothing ran."
        ));
    };
    let Some(found) = cancelled.run_until_cancelled(room.find(operation)).await else {
        return failed("the call was cancelled. Nothing ran.");
    };
    let Some(entry) = found else {
        return failed(&model_text::unknown(operation));
    };
    let mut call = room.call(&entry, Value::from(arguments));
    // Progress is not part of the protocol.
    let until_end = async { while call.progress().await.is_some() {} };
    if cancelled.run_until_cancelled(until_end).await.is_none() {
        call.cancel();
    }
    match call.await {
        Ok(value) => RapResult::from(ToolResult::of(&value)),
        Err(error) => of_error(operation, &error),
    }
}

/// Returns a failure: what happened, and then what the tool has of its result.
fn of_error(operation: &str, error: &CallError) -> RapResult {
    let shown = prefix(operation, MAX_SHOWN);
    match error {
        CallError::NotBound { clients, .. } => {
            tracing::warn!(
                ?clients,
                operation = shown,
                "a client obeys another assistant; serve RAP beside that one"
            );
        }
        other => tracing::debug!(code = %other.code(), operation = shown, "a RAP call failed"),
    }
    let CallError::Tool(failure) = error else { return failed(&model_text::text(operation, error)) };
    // The message is shown, too.
    let public = failure.for_clients();
    let text = model_text::of_tool(&public);
    let Some(partial) = failure.partial().map(ToolResult::of) else { return failed(&text) };
    let says_it = partial.for_model(usize::MAX).text.contains(public.message());
    RapResult::failed(if says_it { partial } else { after(&text, &partial) })
}

/// Returns the parts of a result after a text.
fn after(text: &str, partial: &ToolResult) -> ToolResult {
    let result = partial.content().iter().cloned().fold(ToolResult::text(text), ToolResult::with_block);
    let result = partial.display().iter().cloned().fold(result, ToolResult::with_display);
    match partial.structured() {
        Some(structured) => result.with_structured(structured.clone()),
        None => result,
    }
}

fn failed(text: &str) -> RapResult {
    RapResult::failed(ToolResult::text(text))
}

/// Returns the message. `call_id` is as it came.
fn message(key: &Key, Callback { call_id, .. }: &Callback, result: &RapResult) -> Bytes {
    let written = |result: &RapResult| {
        let mut message = Map::from_iter([
            ("type".to_owned(), json!("tool_result")),
            ("group_id".to_owned(), key.group.as_str().into()),
            ("id".to_owned(), key.id.as_str().into()),
        ]);
        message.extend(call_id.clone().map(|call_id| ("call_id".to_owned(), call_id)));
        message.extend(result.fields());
        Json::Object(message).to_string()
    };
    let text = written(result);
    if text.len() <= MAX_RESULT {
        return text.into();
    }
    let size = text.len();
    written(&failed(&format!("the result has {size} bytes; the limit is {MAX_RESULT}. Ask for less."))).into()
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::{
        Assistant, Client, ToolError,
        adapter::{
            filter::Filter,
            rap::{address::Answers, server::table::Accepted},
        },
        memory::MemoryRoom,
    };

    /// Runs a call whose callback is `agent.example`, a name with these addresses, and returns how often its tool ran.
    async fn runs(addresses: &[&'static [&'static str]]) -> usize {
        let room = MemoryRoom::new();
        let ran = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&ran);
        let ring = move || {
            counter.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, ToolError>("rings") }
        };
        let phone =
            Client::builder().tool("ring", "Rings", ring).join_over(room.client("phone")).await.unwrap();
        let assistant = Assistant::builder().join_over(room.assistant("a")).await.unwrap();
        assistant.ready("phone").await.unwrap();
        let calls = Arc::new(Calls {
            room: Room::new(assistant, Filter::default()),
            table: Table::default(),
            outgoing: Answers::outgoing(addresses, &[]),
            is_closing: AtomicBool::new(false),
            waiting: Waiting::default(),
        });
        let call = json!({
            "operation": "ring", "arguments": {}, "id": "c", "group_id": "g", "callback_url": "https://agent.example/cb",
        });
        let invocation = Invocation::read(&call.to_string(), &calls.outgoing).unwrap();
        let Accepted::New(cancelled) = calls.table.accept(&invocation.key) else { panic!("it is known") };
        run(Arc::clone(&calls), invocation, cancelled).await;
        assert_eq!(calls.waiting.0.load(Ordering::Relaxed), 0);
        drop(phone);
        ran.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn sec_a2_callback_whose_name_stands_for_a_private_address_runs_no_tool() {
        assert_eq!(runs(&[&["10.0.0.7"]]).await, 0);
        assert_eq!(runs(&[&["93.184.216.34", "169.254.169.254"]]).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn sec_a2_callback_whose_name_changes_to_a_private_address_gets_nothing() {
        let begun = Instant::now();
        assert_eq!(runs(&[&["93.184.216.34"], &["127.0.0.1"]]).await, 1);
        assert!(begun.elapsed() < Duration::from_secs(1), "it was tried again");
    }

    #[test]
    fn results_that_wait_are_counted_until_they_are_delivered() {
        let waiting = Waiting::default();
        let first = waiting.add(MAX_WAITING);
        assert!(!waiting.is_full());
        let second = waiting.add(1);
        assert!(waiting.is_full());
        drop((first, second));
        assert!(!waiting.is_full());
    }
}

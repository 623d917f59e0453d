//! The author's callbacks, called inside a participant: whatever they do, the participant continues.

use std::{
    future::Future,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use tokio::sync::Notify;
use toolbridge::{
    Assistant, CallError, Client, Event, Outcome, Tool, ToolContext, ToolError, ToolName, ToolSource, Value,
    memory::MemoryRoom,
    session::{Candidate, SelectionPolicy},
    tools::{Propagate, TraceContext},
    transport::Participant,
};

/// The time after which a test counts as deadlocked; it takes milliseconds.
const LOCKED_UP: Duration = Duration::from_secs(30);

/// Runs the test in its own thread, so that a deadlock fails instead of hanging.
fn within<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let (over, ended) = mpsc::channel();
    thread::spawn(move || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(true).build().unwrap().block_on(test());
        over.send(()).unwrap();
    });
    ended.recv_timeout(LOCKED_UP).expect("the test deadlocked or failed");
}

async fn nothing() -> Result<(), ToolError> {
    Ok(())
}

/// The participant's own handle, as its callback gets it.
type Own = Arc<OnceLock<Assistant>>;

#[test]
fn rules_may_use_the_handle() {
    within(|| async {
        let (room, own) = (MemoryRoom::new(), Own::default());
        let rule = {
            let own = Arc::clone(&own);
            move |_: &Participant| {
                own.get().is_some_and(|assistant| {
                    assistant.call("ours", ()).start().detach();
                    assistant.tools().len() == 1
                })
            }
        };
        let builder = Assistant::builder().admit(rule.clone()).allow_stop(rule).tool("ours", "", nothing);
        let assistant = builder.join_over(room.assistant("assistant")).await.unwrap();
        own.set(assistant.clone()).unwrap();
        let plain = Client::builder().assistant("assistant").tool("slow", "", wait);
        let plain = plain.join_over(room.join(|sid| Participant::new("plain", sid))).await.unwrap();
        let mut call = assistant.call("slow", ()).start();
        call.progress().await.unwrap();
        plain.stop_all().unwrap();
        let stopped = call.await.unwrap_err();
        assert!(matches!(stopped, CallError::Cancelled), "{stopped}");
        assert_eq!(assistant.stats().named("calls"), 3, "each rule made one call");
    });
}

#[test]
fn rule_alone_decides_what_the_transport_announces() {
    within(|| async {
        let room = MemoryRoom::new();
        let assistant =
            Assistant::builder().admit(|_| false).join_over(room.assistant("assistant")).await.unwrap();
        let plain = Client::builder().assistant("assistant").tool("it", "", nothing);
        let transport = room.join(|sid| Participant::new("plain", sid).admitted(true));
        let _plain = plain.join_over(transport).await.unwrap();
        let refused = assistant.call("it", ()).await.unwrap_err();
        assert!(matches!(refused, CallError::UnknownTool { .. }), "{refused}");
    });
}

#[test]
fn selection_function_may_call_its_own_handle() {
    within(|| async {
        let (room, own) = (MemoryRoom::new(), Own::default());
        let called = Arc::new(AtomicBool::new(false));
        let choose = {
            let (own, called) = (Arc::clone(&own), Arc::clone(&called));
            SelectionPolicy::by(move |tool, among: &[Candidate]| {
                if let (Some(assistant), Some(tool)) = (own.get(), tool)
                    && !called.swap(true, Ordering::SeqCst)
                {
                    let turn = assistant.clone().turn();
                    drop(turn.call(tool, ()).start()); // selects again, with this function
                }
                among.first().map(|it| it.identity.clone())
            })
        };
        let builder = Assistant::builder().choose(choose).client("a").client("b");
        let assistant = builder.join_over(room.assistant("assistant")).await.unwrap();
        own.set(assistant.clone()).unwrap();
        let client = |name: &str| {
            let client = Client::builder().assistant("assistant").tool("it", "", nothing);
            client.join_over(room.client(name))
        };
        let (_a, _b) = (client("a").await.unwrap(), client("b").await.unwrap());
        while assistant.tools().len() < 2 {
            assistant.events().recv().await.unwrap();
        }
        assistant.call("it", ()).await.unwrap();
        assert!(called.load(Ordering::SeqCst), "the function used no handle");
    });
}

#[test]
fn rule_that_panics_refuses() {
    within(|| async {
        let room = MemoryRoom::new();
        let admit = |_: &Participant| -> bool { std::panic::resume_unwind(Box::new("planted")) };
        let builder = Assistant::builder().admit(admit).allow_stop(admit).tool("ours", "", nothing);
        let assistant = builder.join_over(room.assistant("assistant")).await.unwrap();
        let plain = Client::builder().assistant("assistant").tool("theirs", "", nothing);
        let plain = plain.join_over(room.join(|sid| Participant::new("plain", sid))).await.unwrap();
        let refused = assistant.call("theirs", ()).await.unwrap_err();
        assert!(matches!(refused, CallError::UnknownTool { .. }), "{refused}");
        let phone = Client::builder().assistant("assistant").tool("slow", "", wait);
        let phone = phone.join_over(room.client("phone")).await.unwrap();
        let mut call = assistant.call("slow", ()).to("phone").timeout(Duration::from_secs(5)).start();
        call.progress().await.unwrap();
        phone.stop_all().unwrap();
        assert!(
            matches!(call.await, Err(CallError::Timeout { .. })),
            "the rule lets no client stop the call"
        );
        drop(plain);
        assistant.call("ours", ()).await.unwrap();
    });
}

async fn wait(context: ToolContext) -> Result<(), ToolError> {
    context.cancelled().await;
    Err(ToolError::cancelled())
}

/// A source whose list panics.
struct Broken {
    changed: Arc<Notify>,
    broken: Arc<Mutex<bool>>,
}

impl ToolSource for Broken {
    fn list(&self) -> Vec<Tool> {
        let broken = *self.broken.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if broken {
            std::panic::resume_unwind(Box::new("planted"));
        }
        vec![Tool::new("it".parse().unwrap(), "")]
    }

    async fn execute(&self, _: &ToolName, _: Value, _: ToolContext) -> Outcome {
        Ok(Value::encode(&1)?)
    }

    async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[test]
fn source_whose_list_panics_keeps_its_tools() {
    within(|| async {
        let (changed, broken) = (Arc::new(Notify::new()), Arc::default());
        let source = Broken { changed: Arc::clone(&changed), broken: Arc::clone(&broken) };
        let builder = Assistant::builder().tools(source);
        let assistant = builder.join_over(MemoryRoom::new().assistant("assistant")).await.unwrap();
        *broken.lock().unwrap() = true;
        changed.notify_one();
        tokio::time::sleep(Duration::from_secs(1)).await; // on a paused clock: until all work is done
        assert_eq!(assistant.call("it", ()).await.unwrap().decode::<u8>().unwrap(), 1);
    });
}

/// A propagator that panics.
struct Touchy;

impl Propagate for Touchy {
    fn context(&self, _: &tracing::Span) -> Option<TraceContext> {
        TraceContext::new([1; 16], [1; 8]).ok()
    }

    fn adopt(&self, _: &tracing::Span, _: &TraceContext) {
        std::panic::resume_unwind(Box::new("planted"));
    }
}

#[test]
fn propagator_that_panics_loses_the_trace_but_not_the_call() {
    within(|| async {
        let builder = Assistant::builder().propagate(Touchy).tool("ours", "", nothing);
        let assistant = builder.join_over(MemoryRoom::new().assistant("assistant")).await.unwrap();
        assistant.call("ours", ()).await.unwrap();
    });
}

/// A propagator that makes calls, and cancels them.
#[derive(Clone, Default)]
struct Calling {
    own: Own,
    adopted: Arc<AtomicUsize>,
}

impl Propagate for Calling {
    fn context(&self, _: &tracing::Span) -> Option<TraceContext> {
        self.use_the_handle();
        TraceContext::new([1; 16], [1; 8]).ok()
    }

    fn adopt(&self, _: &tracing::Span, _: &TraceContext) {
        self.use_the_handle();
        self.adopted.fetch_add(1, Ordering::Relaxed);
    }
}

impl Calling {
    fn use_the_handle(&self) {
        let assistant = self.own.get().unwrap();
        assert_eq!(assistant.tools().len(), 1);
        drop(assistant.call("ours", ()).trace(TraceContext::new([2; 16], [2; 8]).unwrap()).start());
    }
}

#[test]
fn propagator_may_use_the_handle() {
    within(|| async {
        let calling = Calling::default();
        let builder = Assistant::builder().propagate(calling.clone()).tool("ours", "", nothing);
        let assistant = builder.join_over(MemoryRoom::new().assistant("assistant")).await.unwrap();
        calling.own.set(assistant.clone()).unwrap();
        assistant.call("ours", ()).await.unwrap();
        assert_eq!(calling.adopted.load(Ordering::Relaxed), 1, "no cancelled call has started");
    });
}

#[test]
fn rule_that_panics_suppresses_no_events() {
    within(|| async {
        let room = MemoryRoom::new();
        let admit = |_: &Participant| -> bool { std::panic::resume_unwind(Box::new("planted")) };
        let builder = Assistant::builder().admit(admit);
        let assistant = builder.join_over(room.assistant("assistant")).await.unwrap();
        let mut events = assistant.events();
        let _plain = room.join(|sid| Participant::new("plain", sid));
        while !matches!(events.recv().await.unwrap(), Event::Joined(who) if who.identity().as_str() == "plain")
        {
        }
    });
}

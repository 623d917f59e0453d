use std::{
    future::{Future, pending},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::json;
use tokio::{sync::Notify, time::Instant};

use super::*;
use crate::{
    runtime::source::{ToolContext, ToolSource},
    tool::{CallId, Outcome, Progress, SourceHealth, StopReason, ToolOptions},
};

/// A source whose tools are named after what they do.
#[derive(Default)]
struct TestTools {
    name: Option<&'static str>,
    tools: Mutex<Vec<Tool>>,
    health: Mutex<SourceHealth>,
    changed: Notify,
    runs: AtomicUsize,
    dropped: Arc<AtomicUsize>,
    open: Notify,
}

impl TestTools {
    fn new(tools: &[&str]) -> Arc<Self> {
        let deeds = Self::default();
        *deeds.tools.lock().unwrap() = tools.iter().map(|name| tool(name)).collect();
        Arc::new(deeds)
    }

    fn named(name: &'static str, tools: &[&str]) -> Arc<Self> {
        let tools = tools.iter().map(|name| tool(name)).collect();
        Arc::new(Self { name: Some(name), tools: Mutex::new(tools), ..Self::default() })
    }

    fn with(tool: Tool) -> Arc<Self> {
        let deeds = Self::default();
        deeds.tools.lock().unwrap().push(tool);
        Arc::new(deeds)
    }

    fn set(&self, health: SourceHealth, tools: &[&str]) {
        *self.health.lock().unwrap() = health;
        *self.tools.lock().unwrap() = tools.iter().map(|name| tool(name)).collect();
    }
}

impl ToolSource for TestTools {
    fn name(&self) -> Option<String> {
        self.name.map(str::to_owned)
    }

    fn list(&self) -> Vec<Tool> {
        self.tools.lock().unwrap().clone()
    }

    async fn execute(&self, tool: &ToolName, arguments: Value, context: ToolContext) -> Outcome {
        struct Counted(Arc<AtomicUsize>);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let _counted = Counted(Arc::clone(&self.dropped));
        self.runs.fetch_add(1, Ordering::SeqCst);
        match tool.as_str() {
            "echo" => Ok(arguments),
            "never" => pending().await,
            "panic" => panic!("the password is hunter2"),
            "wait" => {
                self.open.notified().await;
                Ok(arguments)
            }
            "tidy" => {
                context.cancelled().await;
                tokio::time::sleep(Duration::from_millis(900)).await;
                Err(ToolError::new("stopped_early", "half is done"))
            }
            "chatty" => {
                for n in 0..10_000 {
                    context.progress(format!("{n}"));
                }
                Ok(Value::empty())
            }
            "local" => Err(std::io::Error::other("the password is hunter2"))?,
            "custom" => Err(ToolError::new("too_dark", "the lamp is broken")),
            _ => Err(ToolError::new(ErrorCode::UNKNOWN_TOOL, "")),
        }
    }

    fn changed(&self) -> impl Future<Output = ()> + Send {
        self.changed.notified()
    }

    fn uses_cancel_grace(&self, tool: &ToolName) -> bool {
        matches!(tool.as_str(), "tidy" | "stubborn")
    }

    fn health(&self) -> SourceHealth {
        self.health.lock().unwrap().clone()
    }
}

fn tool(name: &str) -> Tool {
    Tool::new(name.parse().unwrap(), "")
}

impl Executor {
    fn new(sources: Vec<Arc<dyn AnySource>>) -> Result<(Self, Reports), RegisterError> {
        Self::with_caps(sources, 64, 256)
    }
}

fn executor(source: &Arc<TestTools>) -> (Executor, Reports) {
    Executor::new(vec![Arc::new(Arc::clone(source))]).unwrap()
}

fn job(key: u64, tool: &str) -> Job {
    job_with(key, tool, &json!({}))
}

fn job_with(key: u64, tool: &str, arguments: &serde_json::Value) -> Job {
    let limit = Duration::from_secs(5);
    Job {
        key: JobKey(key),
        tool: tool.parse().unwrap(),
        arguments: Value::encode(arguments).unwrap(),
        caller: "assistant".into(),
        call: CallId::known("c1"),
        limit,
        deadline: Instant::now().into_std() + limit,
        meta: Value::empty(),
    }
}

/// Returns the next outcome, skipping other reports.
async fn outcome(reports: &mut Reports) -> (JobKey, Outcome) {
    loop {
        match reports.recv().await.unwrap() {
            Done::Settled(key, outcome) => return (key, outcome),
            Done::Started(_) | Done::Progress(..) | Done::Warning(_) => {}
        }
    }
}

async fn error(reports: &mut Reports) -> ToolError {
    outcome(reports).await.1.unwrap_err()
}

async fn started(reports: &mut Reports) -> JobKey {
    match reports.recv().await.unwrap() {
        Done::Started(key) => key,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn protocol_a5_four_causes_have_their_codes_and_others_pass() {
    let source = TestTools::with(tool("echo").schema(json!({"type": "object", "required": ["a"]})));
    source.tools.lock().unwrap().extend(["never", "panic", "local", "custom"].map(tool));
    let (mut executor, mut reports) = executor(&source);
    for (tool, code, text) in [
        ("nothing", ErrorCode::UNKNOWN_TOOL, "there is no tool named \"nothing\""),
        ("echo", ErrorCode::INVALID_PARAMETERS, "the parameters do not fit at /a: it is required"),
        ("never", ErrorCode::TIMEOUT, "the tool took longer than its limit of 5000 ms"),
        ("panic", ErrorCode::EXECUTION_ERROR, "the tool crashed"),
        ("local", ErrorCode::EXECUTION_ERROR, ToolError::LOCAL_MESSAGE),
        ("custom", "too_dark".into(), "the lamp is broken"),
    ] {
        executor.execute(job(1, tool), Span::none());
        let error = error(&mut reports).await;
        assert_eq!((error.code(), error.message()), (code, text));
    }
}

#[tokio::test(start_paused = true)]
async fn panic_affects_no_other_call_and_its_text_stays_local() {
    let source = TestTools::new(&["panic", "wait"]);
    let (mut executor, mut reports) = executor(&source);
    executor.execute(job(1, "wait"), Span::none());
    executor.execute(job(2, "panic"), Span::none());
    let (key, panicked) = outcome(&mut reports).await;
    let panicked = panicked.unwrap_err();
    assert_eq!((key, panicked.to_string().contains("hunter2")), (JobKey(2), false));
    assert!(
        panicked.source().unwrap().to_string().contains("hunter2"),
        "the panic's text is missing in the local error"
    );
    source.open.notify_one();
    assert!(matches!(outcome(&mut reports).await, (JobKey(1), Ok(_))));
}

#[tokio::test(start_paused = true)]
async fn timeout_names_the_tools_own_limit_if_it_ends_first() {
    let short = ToolOptions::default().timeout(Duration::from_millis(1_500));
    let source = TestTools::with(tool("never").options(short));
    let (mut executor, mut reports) = executor(&source);
    let begun = Instant::now();
    executor.execute(job(1, "never"), Span::none());
    assert_eq!(error(&mut reports).await.message(), "the tool took longer than its limit of 1500 ms");
    assert_eq!(begun.elapsed(), Duration::from_millis(1_500));
}

#[tokio::test(start_paused = true)]
async fn cancelled_function_without_context_is_dropped_at_once() {
    let source = TestTools::new(&["never"]);
    let (mut executor, mut reports) = executor(&source);
    let begun = Instant::now();
    executor.execute(job(1, "never"), Span::none());
    started(&mut reports).await;
    executor.abort(JobKey(1), StopReason::Caller);
    assert_eq!(error(&mut reports).await.code(), ErrorCode::CANCELLED);
    assert_eq!((begun.elapsed(), source.dropped.load(Ordering::SeqCst)), (Duration::ZERO, 1));
}

#[tokio::test(start_paused = true)]
async fn cancelled_function_with_context_has_its_grace_period() {
    let source = TestTools::new(&["tidy"]);
    source.tools.lock().unwrap().push(tool("stubborn"));
    let (mut executor, mut reports) = executor(&source);
    let begun = Instant::now();
    executor.execute(job(1, "tidy"), Span::none());
    started(&mut reports).await;
    executor.abort(JobKey(1), StopReason::Caller);
    assert_eq!(error(&mut reports).await.message(), "half is done");
    assert_eq!(begun.elapsed(), Duration::from_millis(900));

    // A function that ignores its cancellation ends with the grace period.
    let short = ToolOptions::default().cancel_grace(Duration::from_millis(300));
    let source = TestTools::with(tool("tidy").options(short));
    let (mut executor, mut reports) = Executor::new(vec![Arc::new(Arc::clone(&source)) as _]).unwrap();
    let begun = Instant::now();
    executor.execute(job(2, "tidy"), Span::none());
    started(&mut reports).await;
    executor.abort(JobKey(2), StopReason::Caller);
    assert_eq!(error(&mut reports).await.code(), ErrorCode::CANCELLED);
    assert_eq!((begun.elapsed(), source.dropped.load(Ordering::SeqCst)), (Duration::from_millis(300), 1));
}

#[tokio::test(start_paused = true)]
async fn timeout_is_reported_before_the_cleanup() {
    let source = TestTools::new(&["tidy"]);
    let (mut executor, mut reports) = executor(&source);
    let begun = Instant::now();
    executor.execute(job(1, "tidy"), Span::none());
    assert_eq!(error(&mut reports).await.code(), ErrorCode::TIMEOUT);
    assert_eq!((begun.elapsed(), source.dropped.load(Ordering::SeqCst)), (Duration::from_secs(5), 0));
    assert_eq!(executor.running.join_next().await.unwrap().unwrap().0, JobKey(1));
    assert_eq!(begun.elapsed(), Duration::from_millis(5_900));
    drop(executor);
    assert!(reports.recv().await.is_none(), "a report after the outcome");
}

#[tokio::test(start_paused = true)]
async fn calls_above_the_limit_wait_in_order_and_then_are_refused() {
    let source = TestTools::new(&["wait", "echo"]);
    let sources: Vec<Arc<dyn AnySource>> = vec![Arc::new(Arc::clone(&source))];
    let (mut executor, mut reports) = Executor::with_caps(sources, 2, 2).unwrap();
    executor.execute(job(1, "wait"), Span::none());
    executor.execute(job(2, "wait"), Span::none());
    executor.execute(job(3, "echo"), Span::none());
    executor.execute(job(4, "echo"), Span::none());
    executor.execute(job(5, "echo"), Span::none());
    let (key, refused) = outcome(&mut reports).await;
    assert_eq!((key, refused.unwrap_err().code()), (JobKey(5), ErrorCode::BUSY));
    source.open.notify_one();
    let mut ended = Vec::new();
    for _ in 0..3 {
        let (key, outcome) = outcome(&mut reports).await;
        outcome.unwrap();
        ended.push(key);
    }
    assert_eq!(ended[1..], [JobKey(3), JobKey(4)]);
    assert_eq!(source.runs.load(Ordering::SeqCst), 4);
}

#[tokio::test(start_paused = true)]
async fn call_that_waits_too_long_never_runs() {
    let source = TestTools::new(&["never"]);
    let sources: Vec<Arc<dyn AnySource>> = vec![Arc::new(Arc::clone(&source))];
    let (mut executor, mut reports) = Executor::with_caps(sources, 1, 2).unwrap();
    let mut long = job(1, "never");
    long.deadline += Duration::from_secs(60);
    executor.execute(long, Span::none());
    executor.execute(job(2, "never"), Span::none());
    executor.execute(job(3, "never"), Span::none());
    executor.abort(JobKey(3), StopReason::Caller);
    let (key, cancelled) = outcome(&mut reports).await;
    assert_eq!((key, cancelled.unwrap_err().code()), (JobKey(3), ErrorCode::CANCELLED));
    let (key, late) = outcome(&mut reports).await;
    let late = late.unwrap_err();
    assert_eq!((key, late.code()), (JobKey(2), ErrorCode::BUSY), "the code proves that nothing ran");
    assert!(late.message().contains("5000 ms"), "{late}");
    assert_eq!(source.runs.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn refused_call_never_starts_and_a_started_one_is_not_refused() {
    let source = TestTools::new(&["wait"]);
    let sources: Vec<Arc<dyn AnySource>> = vec![Arc::new(Arc::clone(&source))];
    let (mut executor, mut reports) = Executor::with_caps(sources, 1, 2).unwrap();
    executor.execute(job(1, "wait"), Span::none());
    executor.execute(job(2, "wait"), Span::none());
    started(&mut reports).await;
    // Its task has not run yet.
    assert_eq!(executor.refuse_unstarted(), [JobKey(2)]);
    assert!(executor.refuse_unstarted().is_empty());
    source.open.notify_one();
    let (one, two) = (outcome(&mut reports).await, outcome(&mut reports).await);
    let refused = [one, two].into_iter().find(|(key, _)| *key == JobKey(2)).unwrap();
    assert!(refused.1.is_err());
    executor.rest().await;
    assert_eq!(source.runs.load(Ordering::SeqCst), 1);
}

/// The executor decides on one thread, and the task of the call on another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_that_starts_while_the_participant_leaves_either_runs_or_is_refused() {
    for _ in 0..200 {
        let source = TestTools::new(&["echo"]);
        let (mut executor, _reports) = executor(&source);
        executor.execute(job(1, "echo"), Span::none());
        let refused = executor.refuse_unstarted().len();
        executor.rest().await;
        assert_eq!(source.runs.load(Ordering::SeqCst) + refused, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn unread_progress_is_replaced_by_the_next() {
    let source = TestTools::new(&["chatty"]);
    let (mut executor, mut reports) = executor(&source);
    executor.execute(job(1, "chatty"), Span::none());
    executor.running.join_next().await.unwrap().unwrap();
    assert!(matches!(reports.recv().await, Some(Done::Started(JobKey(1)))));
    let last = Progress::from("9999");
    assert!(matches!(reports.recv().await, Some(Done::Progress(JobKey(1), progress)) if progress == last));
    assert!(matches!(reports.recv().await, Some(Done::Settled(JobKey(1), Ok(_)))));
}

#[tokio::test(start_paused = true)]
async fn dropped_executor_stops_and_settles_all_calls() {
    let source = TestTools::new(&["never", "tidy"]);
    let (mut executor, mut reports) = executor(&source);
    executor.execute(job(1, "never"), Span::none());
    executor.execute(job(2, "tidy"), Span::none());
    started(&mut reports).await;
    started(&mut reports).await;
    drop(executor);
    let mut ended = [outcome(&mut reports).await.0, outcome(&mut reports).await.0];
    ended.sort_unstable();
    assert_eq!((ended, source.dropped.load(Ordering::SeqCst)), ([JobKey(1), JobKey(2)], 2));
    assert!(reports.recv().await.is_none());
}

#[tokio::test]
async fn sources_with_one_name_between_them_are_refused() {
    let (one, other) = (TestTools::new(&["echo"]), TestTools::new(&["echo"]));
    let clash = Executor::new(vec![Arc::new(Arc::clone(&one)), Arc::new(Arc::clone(&other))]);
    let name = "echo".parse().unwrap();
    assert_eq!(clash.unwrap_err(), RegisterError::Duplicate { name });
    let name = "bridge.echo".parse().unwrap();
    let reserved = Executor::new(vec![Arc::new(Arc::clone(&one).prefixed("bridge"))]);
    assert_eq!(reserved.unwrap_err(), RegisterError::Reserved { name });
    let (executor, _) = Executor::new(vec![Arc::new(one), Arc::new(other.prefixed("b"))]).unwrap();
    assert_eq!(executor.tools().iter().map(|it| it.name().as_str()).collect::<Vec<_>>(), ["echo", "b.echo"]);
}

#[tokio::test]
async fn tool_with_a_taken_name_gets_the_name_of_its_source() {
    let (one, other) = (TestTools::new(&["echo", "b.wait"]), TestTools::named("b", &["echo", "wait"]));
    let sources: Vec<Arc<dyn AnySource>> = vec![Arc::new(Arc::clone(&one)), Arc::new(Arc::clone(&other))];
    let (mut executor, mut reports) = Executor::new(sources).unwrap();
    let names =
        |executor: &Executor| executor.tools().iter().map(|it| it.name().to_string()).collect::<Vec<_>>();
    assert_eq!(names(&executor), ["echo", "b.wait", "b.echo", "wait"]);
    let renamed = executor.renamed().to_vec();
    assert_eq!(
        (renamed.len(), renamed[0].source.as_str(), renamed[0].offered_as.as_str()),
        (1, "b", "b.echo")
    );
    executor.execute(job(1, "b.echo"), Span::none());
    assert!(outcome(&mut reports).await.1.is_ok(), "the source does not know the name that is offered");
    one.tools.lock().unwrap().clear();
    executor.refresh();
    assert_eq!((names(&executor), executor.renamed().len()), (vec!["echo".to_owned(), "wait".to_owned()], 0));
}

#[tokio::test]
async fn sec_i10_name_of_a_source_that_is_down_reaches_no_other_source() {
    let (one, other) = (TestTools::named("a", &["echo", "wait"]), TestTools::named("b", &["echo", "custom"]));
    let sources: Vec<Arc<dyn AnySource>> = vec![Arc::new(Arc::clone(&one)), Arc::new(Arc::clone(&other))];
    let (mut executor, mut reports) = Executor::new(sources).unwrap();
    let offered = |executor: &mut Executor| {
        executor.refresh();
        executor.tools().iter().map(|it| it.name().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(offered(&mut executor), ["echo", "wait", "b.echo", "custom"]);
    let down = || SourceHealth::Down { reason: "it ended".into(), since: Instant::now().into_std() };
    for health in [down(), SourceHealth::Starting] {
        one.set(health, &[]);
        assert_eq!(offered(&mut executor), ["b.echo", "custom"]);
        executor.execute(job(1, "echo"), Span::none());
        assert_eq!(error(&mut reports).await.code(), ErrorCode::UNKNOWN_TOOL);
    }
    one.set(SourceHealth::Up, &["echo", "wait"]);
    assert_eq!(offered(&mut executor), ["echo", "wait", "b.echo", "custom"]);

    // A list without the name frees it, also while its source is down after that.
    one.set(SourceHealth::Up, &["wait"]);
    assert_eq!(offered(&mut executor), ["wait", "echo", "custom"]);
    one.set(down(), &[]);
    assert_eq!(offered(&mut executor), ["echo", "custom"]);

    // The names of a later source take none from an earlier one.
    other.set(down(), &[]);
    one.set(SourceHealth::Up, &["echo"]);
    assert_eq!(offered(&mut executor), ["echo"]);
}

#[tokio::test(start_paused = true)]
async fn changed_list_is_read_again() {
    let source = TestTools::new(&["echo"]);
    let (mut executor, mut reports) = executor(&source);
    source.tools.lock().unwrap().extend([tool("custom"), tool("echo"), tool("never").schema(json!(7))]);
    source.changed.notify_one();
    executor.changed().await;
    executor.refresh();
    let names: Vec<_> = executor.tools().iter().map(|it| it.name().to_string()).collect();
    assert_eq!(names, ["echo", "custom"], "a duplicate or invalid tool is offered");
    executor.execute(job(1, "custom"), Span::none());
    assert_eq!(error(&mut reports).await.code().as_str(), "too_dark");
}

#[tokio::test(start_paused = true)]
async fn ended_calls_leave_no_state() {
    let source = TestTools::new(&["echo"]);
    let (mut executor, mut reports) = executor(&source);
    for key in 0..1_000 {
        executor.execute(job_with(key, "echo", &json!({"n": key})), Span::none());
        assert_eq!(outcome(&mut reports).await.0, JobKey(key));
        tokio::task::yield_now().await;
    }
    executor.forget_ended();
    assert!(executor.open.is_empty() && executor.running.is_empty());
}

#[tokio::test(start_paused = true)]
async fn reused_key_stops_its_new_call() {
    let source = TestTools::new(&["tidy", "never"]);
    let (mut executor, mut reports) = executor(&source);
    executor.execute(job(1, "tidy"), Span::none());
    assert_eq!(error(&mut reports).await.code(), ErrorCode::TIMEOUT);
    executor.execute(job(1, "never"), Span::none());
    started(&mut reports).await;
    tokio::time::sleep(Duration::from_secs(1)).await; // the first call has cleaned up
    executor.forget_ended();
    executor.abort(JobKey(1), StopReason::Caller);
    assert_eq!(error(&mut reports).await.code(), ErrorCode::CANCELLED);
}

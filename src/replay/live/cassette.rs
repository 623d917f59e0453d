//! Replays a recording's client: answers live calls with recorded results.

use std::{
    fmt,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

use crate::{
    recording::{Entry, Recording},
    replay::{
        LiveError, Mismatch, MismatchReason,
        matcher::Matcher,
        recorded_calls::{ClientCall, Ending, RecordedAnswer, RecordedCalls},
    },
    runtime::source::{ToolContext, ToolSource},
    tool::{CallId, ErrorCode, Outcome, Progress, Tool, ToolError, ToolName},
    value::Value,
};

/// How many mismatches are kept; further ones are counted.
const MAX_MISSES: usize = 1_000;

/// Tools that answer from a recording: a source for [`Client`](crate::Client)'s builder. Clones share one state.
///
/// It offers the tools of all recorded clients. A live call is answered by a recorded call with the same tool and
/// parameters; key order and number width do not matter. Matching recorded calls are used in recorded order and once
/// each. A call without an unused match is a [`Mismatch`], and its caller receives the error
/// [`not_recorded`](Mismatch::CODE). The recorded schemas are offered but not compiled, so a call that violates one
/// is an ordinary mismatch. No consent is requested, since no tool runs.
///
/// To test an assistant against a recorded session:
///
/// ```
/// use toolbridge::{Assistant, Client, memory, replay::Cassette};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> anyhow::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("toolbridge-cassette-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let session = folder.join("session.mcap");
/// # {
/// #     let room = memory::MemoryRoom::new();
/// #     async fn get_battery() -> Result<f32, toolbridge::ToolError> { Ok(0.8) }
/// #     let phone = Client::builder().tool("get_battery", "Battery level, 0 to 1", get_battery).record(&session);
/// #     let phone = phone.join_over(room.client("phone")).await?;
/// #     let assistant = Assistant::builder().join_over(room.assistant("assistant")).await?;
/// #     assistant.call("get_battery", ()).await?;
/// #     assistant.close().await;
/// #     phone.close().await;
/// # }
/// # async fn my_app(assistant: &Assistant) -> anyhow::Result<()> {
/// #     assistant.call("get_battery", ()).await?;
/// #     Ok(())
/// # }
/// let (room, cassette) = (memory::MemoryRoom::new(), Cassette::open(&session)?.fast());
/// let _phone = Client::builder().tools(cassette.clone()).join_over(room.client("phone")).await?;
/// let assistant = Assistant::builder().join_over(room.assistant("assistant")).await?;
/// my_app(&assistant).await?; // what is to be tested
/// assert_eq!((cassette.missed(), cassette.left()), (0, 0));
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Cassette {
    recorded: Arc<RecordedCalls>,
    state: Arc<Mutex<State>>,
    timing: Timing,
    loose: bool,
}

/// When a [`Cassette`] answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Timing {
    /// After the recorded duration, with progress at the recorded times. If the recording has no answer (the call was
    /// stopped, timed out or lost its owner), there is none until the call is stopped or its limit is reached.
    #[default]
    Recorded,
    /// At once. If the recording has no answer, the error is the recorded caller's: `cancelled`, `timeout` or else
    /// `lost`.
    Fast,
}

#[derive(Debug)]
struct State {
    matcher: Matcher,
    answered: u64,
    missed: u64,
    misses: Vec<Mismatch>,
}

impl Cassette {
    /// Opens a recording.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, holds metadata only, is damaged (use [`new`](Cassette::new) for the entries before the
    /// damage), is too large, or has no call to a client.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LiveError> {
        let recording = Recording::open(path)?;
        if recording.about().metadata_only {
            return Err(LiveError::MetadataOnly);
        }
        let mut entries = recording.entries();
        let cassette = Self::new(&mut entries);
        match entries.damage() {
            Some(damage) => Err(LiveError::Damaged(damage.clone())),
            None => cassette,
        }
    }

    /// Uses the entries of a recording of the client, its assistant, or an observer of both.
    ///
    /// # Errors
    /// Returns an error if the entries are too large or have no call to a client.
    pub fn new(entries: impl IntoIterator<Item = Entry>) -> Result<Self, LiveError> {
        let recorded = RecordedCalls::read(entries)?;
        if recorded.tools.is_empty() {
            return Err(LiveError::NoCalls);
        }
        let state = State { matcher: Matcher::new(&recorded), answered: 0, missed: 0, misses: Vec::new() };
        Ok(Self {
            recorded: Arc::new(recorded),
            state: Arc::new(Mutex::new(state)),
            timing: Timing::default(),
            loose: false,
        })
    }

    /// Sets when to answer. Default: as recorded.
    #[must_use]
    pub fn timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    /// Answers at once: [`Timing::Fast`].
    #[must_use]
    pub fn fast(self) -> Self {
        self.timing(Timing::Fast)
    }

    /// Repeats the last matching recorded call when all were used, instead of a mismatch.
    #[must_use]
    pub fn loose(mut self) -> Self {
        self.loose = true;
        self
    }

    /// The number of recorded calls that can be matched: those of offered tools with readable parameters.
    pub fn calls(&self) -> usize {
        self.lock().matcher.calls()
    }

    /// The number of recorded calls that cannot be matched because their parameters are redacted.
    pub fn redacted(&self) -> usize {
        self.lock().matcher.redacted()
    }

    /// The number of matchable calls that are unused so far.
    pub fn left(&self) -> usize {
        let state = self.lock();
        state.matcher.calls() - state.matcher.given()
    }

    /// The number of live calls that matched a recorded call, including those without a recorded answer.
    pub fn answered(&self) -> u64 {
        self.lock().answered
    }

    /// The number of live calls without a match.
    pub fn missed(&self) -> u64 {
        self.lock().missed
    }

    /// The first 1,000 mismatches.
    pub fn misses(&self) -> Vec<Mismatch> {
        self.lock().misses.clone()
    }

    /// The recorded call that answers this one.
    fn take(&self, tool: &ToolName, parameters: &Value, call: &CallId) -> Result<&ClientCall, ToolError> {
        let mut state = self.lock();
        let taken = state.matcher.take(&self.recorded, tool.as_str(), parameters, self.loose);
        let reason = match taken.map(|place| self.recorded.calls.get(place)) {
            Ok(Some(client_call)) => {
                state.answered += 1;
                return Ok(client_call);
            }
            Ok(None) => MismatchReason::NothingAlike, // a matcher is of its own recorded
            Err(reason) => reason,
        };
        let miss = Mismatch { call: call.clone(), tool: tool.to_string(), reason };
        let error = miss.error();
        state.missed += 1;
        if state.misses.len() < MAX_MISSES {
            state.misses.push(miss);
        }
        Err(error)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ToolSource for Cassette {
    fn list(&self) -> Vec<Tool> {
        self.recorded.tools.clone()
    }

    async fn execute(&self, tool: &ToolName, arguments: Value, context: ToolContext) -> Outcome {
        let client_call = self.take(tool, &arguments, context.call_id())?;
        let began = Instant::now();
        if client_call.began() {
            context.progress(Progress::started());
        }
        for (after, step) in &client_call.steps {
            self.wait(began, *after).await;
            context.progress(step.clone());
        }
        match client_call.ending() {
            Ending::Answered(answer) => {
                self.wait(began, client_call.took().unwrap_or_default()).await;
                outcome(answer)
            }
            _ if self.timing == Timing::Recorded => std::future::pending().await,
            Ending::TimedOut => {
                let limit = client_call.limit.as_millis();
                Err(ToolError::new(
                    ErrorCode::TIMEOUT,
                    format!("the recorded call ran out of its {limit} ms"),
                ))
            }
            Ending::Stopped => Err(ToolError::new(ErrorCode::CANCELLED, "the recorded call was stopped")),
            Ending::Open => Err(ToolError::new(ErrorCode::LOST, "the recorded call was never answered")),
        }
    }

    /// Waiting for a recorded answer needs no cleanup.
    fn uses_cancel_grace(&self, _tool: &ToolName) -> bool {
        false
    }

    /// The file's content is untrusted.
    fn validates_arguments(&self) -> bool {
        true
    }
}

impl Cassette {
    async fn wait(&self, began: Instant, after: Duration) {
        if let (Timing::Recorded, Some(at)) = (self.timing, began.checked_add(after)) {
            sleep_until(at).await;
        }
    }
}

impl fmt::Debug for Cassette {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cassette")
            .field("tools", &self.recorded.tools.len())
            .field("calls", &self.recorded.calls.len())
            .field("timing", &self.timing)
            .finish_non_exhaustive()
    }
}

fn outcome(answer: &RecordedAnswer) -> Outcome {
    if answer.success {
        return Ok(answer.value.clone().unwrap_or_else(Value::empty));
    }
    let error = ToolError::new(answer.code.clone(), &answer.message);
    Err(match &answer.value {
        Some(partial) => error.with_partial(partial.clone()),
        None => error,
    })
}

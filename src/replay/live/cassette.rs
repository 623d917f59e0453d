//! The client's end of a recording: live calls are answered with what was recorded.

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
        LiveError, Miss, MissReason,
        shelf::Shelf,
        tape::{Answer, Ending, Tape, Taped},
    },
    tool::{
        CallId, ErrorCode, Outcome, Progress, Tool, ToolError, ToolName,
        source::{ToolContext, ToolSource},
    },
    value::Value,
};

/// So many misses are kept; further ones are counted.
const MAX_MISSES: usize = 1_000;

/// Recorded tools that answer from their recording: a source for [`Client`](crate::Client)'s builder, as a handle.
///
/// It offers what the recorded clients offered, several as if they were one. A live call is answered by a recorded one
/// of the same tool and parameters: the order of keys makes no difference, nor does the width of a number. Recorded
/// calls that ask for the same are given in recorded order and each once; what then follows, or never was there, is a
/// [`Miss`]: its caller reads the error [`not_recorded`](Miss::CODE), and nothing else ever answers. The schemas come from a file, and are
/// offered without being compiled: a call that breaks one is a miss like any other. No person is asked for consent,
/// since nothing runs.
///
/// A test of one's own assistant against a recorded session:
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
/// #     let room = memory::Room::new();
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
/// let (room, cassette) = (memory::Room::new(), Cassette::open(&session)?.fast());
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
    tape: Arc<Tape>,
    state: Arc<Mutex<State>>,
    timing: Timing,
    loose: bool,
}

/// When a [`Cassette`] answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timing {
    /// After as long as the recorded call took, its progress at its times; where the recording has no answer (the call
    /// was stopped, its limit was over, its owner was lost) there is none either, until the call is stopped or its
    /// limit is over.
    #[default]
    Recorded,
    /// At once. Where the recording has no answer, the error is what its caller was told: `cancelled`, `timeout`, or
    /// else `lost`.
    Fast,
}

#[derive(Debug)]
struct State {
    shelf: Shelf,
    answered: u64,
    missed: u64,
    misses: Vec<Miss>,
}

impl Cassette {
    /// Reads a recording.
    ///
    /// # Errors
    /// It cannot be read, is damaged (what stands before the damage is had by [`new`](Cassette::new)), is too large
    /// to be held, or has no call that a client was asked.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LiveError> {
        let mut entries = Recording::open(path)?.entries();
        let cassette = Self::new(&mut entries);
        match entries.damage() {
            Some(damage) => Err(LiveError::Damaged(damage.clone())),
            None => cassette,
        }
    }

    /// Takes the entries of a recording: of the client, of its assistant, or of somebody who saw both.
    ///
    /// # Errors
    /// They are too large to be held, or there is no call that a client was asked.
    pub fn new(entries: impl IntoIterator<Item = Entry>) -> Result<Self, LiveError> {
        let tape = Tape::read(entries)?;
        if tape.tools.is_empty() {
            return Err(LiveError::NoCalls);
        }
        let state = State { shelf: Shelf::new(&tape), answered: 0, missed: 0, misses: Vec::new() };
        Ok(Self {
            tape: Arc::new(tape),
            state: Arc::new(Mutex::new(state)),
            timing: Timing::default(),
            loose: false,
        })
    }

    /// When it answers. Default: as recorded.
    #[must_use]
    pub fn timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    /// It answers at once: [`Timing::Fast`].
    #[must_use]
    pub fn fast(self) -> Self {
        self.timing(Timing::Fast)
    }

    /// When all recorded calls that ask for the same were given, the last of them is given again, instead of a miss.
    #[must_use]
    pub fn loose(mut self) -> Self {
        self.loose = true;
        self
    }

    /// How many recorded calls can be matched: those of tools that are offered, and whose parameters can be read.
    pub fn calls(&self) -> usize {
        self.lock().shelf.calls()
    }

    /// How many recorded calls cannot be matched, since their parameters were taken out of the recording.
    pub fn redacted(&self) -> usize {
        self.lock().shelf.redacted()
    }

    /// How many of the calls that can be matched were not asked for so far.
    pub fn left(&self) -> usize {
        let state = self.lock();
        state.shelf.calls() - state.shelf.given()
    }

    /// How many live calls were answered from the recording, those included that have no answer in it.
    pub fn answered(&self) -> u64 {
        self.lock().answered
    }

    /// How many live calls the recording did not answer.
    pub fn missed(&self) -> u64 {
        self.lock().missed
    }

    /// The first 1,000 of these.
    pub fn misses(&self) -> Vec<Miss> {
        self.lock().misses.clone()
    }

    /// The recorded call that answers this one.
    fn take(&self, tool: &ToolName, parameters: &Value, call: &CallId) -> Result<&Taped, ToolError> {
        let mut state = self.lock();
        let taken = state.shelf.take(&self.tape, tool.as_str(), parameters, self.loose);
        let reason = match taken.map(|place| self.tape.calls.get(place)) {
            Ok(Some(taped)) => {
                state.answered += 1;
                return Ok(taped);
            }
            Ok(None) => MissReason::NothingAlike, // a shelf is of its own tape
            Err(reason) => reason,
        };
        let miss = Miss { call: call.clone(), tool: tool.to_string(), reason };
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
        self.tape.tools.clone()
    }

    async fn execute(&self, tool: &ToolName, arguments: Value, context: ToolContext) -> Outcome {
        let taped = self.take(tool, &arguments, context.call_id())?;
        let began = Instant::now();
        if taped.began() {
            context.progress(Progress::started());
        }
        for (after, step) in &taped.steps {
            self.wait(began, *after).await;
            context.progress(step.clone());
        }
        match taped.ending() {
            Ending::Answered(answer) => {
                self.wait(began, taped.took().unwrap_or_default()).await;
                outcome(answer)
            }
            _ if self.timing == Timing::Recorded => std::future::pending().await,
            Ending::TimedOut => {
                let limit = taped.limit.as_millis();
                Err(ToolError::new(
                    ErrorCode::TIMEOUT,
                    format!("the recorded call ran out of its {limit} ms"),
                ))
            }
            Ending::Stopped => Err(ToolError::new(ErrorCode::CANCELLED, "the recorded call was stopped")),
            Ending::Open => Err(ToolError::new(ErrorCode::LOST, "the recorded call was never answered")),
        }
    }

    /// Who waits for what was recorded has nothing to tidy up.
    fn uses_cancel_grace(&self, _tool: &ToolName) -> bool {
        false
    }

    /// What is in a file is somebody else's.
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
            .field("tools", &self.tape.tools.len())
            .field("calls", &self.tape.calls.len())
            .field("timing", &self.timing)
            .finish_non_exhaustive()
    }
}

fn outcome(answer: &Answer) -> Outcome {
    if answer.success {
        return Ok(answer.value.clone().unwrap_or_else(Value::empty));
    }
    let error = ToolError::new(answer.code.clone(), &answer.message);
    Err(match &answer.value {
        Some(partial) => error.with_partial(partial.clone()),
        None => error,
    })
}

//! Runs the calls of tool sources: a limited number at once, each within its time limit, each with exactly one
//! outcome.
//!
//! The executor holds the tools that the sources offer and one task per open call. Inputs are
//! [`execute`](Executor::execute) and [`abort`](Executor::abort); outputs are [`Reports`]. A function that panics,
//! never returns or ignores its cancellation affects neither its caller nor another call.

mod catch_panic;
mod listing;
mod questions;
mod report;
mod run;
mod slots;

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use tokio::{sync::mpsc, task::JoinSet, time::timeout};
use tracing::Span;

use crate::{
    runtime::{
        reporter::Reporter as RoomReporter,
        schema::ArgumentCheck,
        source::{AnySource, Asker, SOURCE_CLOSE},
        stop_signal::StopSignal,
    },
    tool::{ErrorCode, Job, JobKey, RegisterError, SourceStatus, StopReason, Tool, ToolError, ToolName},
    value::{Value, abridged},
};

pub(crate) use self::listing::Renamed;
pub(crate) use self::questions::Questions;
pub(crate) use self::report::Reports;
pub(crate) use self::report::{Done, Warning};
pub(crate) use self::run::leaving;
use self::{
    catch_panic::catch_panic,
    listing::list,
    report::Reporter,
    run::{RoomAccess, Run, Start, run},
    slots::Slots,
};

/// The shortest time between two reads of a source's list, however often it changes.
const LIST_AGAIN: Duration = Duration::from_millis(100);

/// The most notes of one source that are read, and the longest, in bytes.
const MAX_NOTES: usize = 64;
const MAX_NOTE: usize = 512;

/// Runs the calls of tool sources. Dropping it stops them all.
pub(crate) struct Executor {
    sources: Vec<Arc<dyn AnySource>>,
    /// The names in the last list of each source that was up, by its position. They stay reserved while it is down, so
    /// that no call that is meant for it reaches another source.
    names: Vec<BTreeSet<ToolName>>,
    offered: Vec<Offered>,
    left_out: Vec<(ToolName, RegisterError)>,
    renamed: Vec<Renamed>,
    /// Reserved tools, which are never offered.
    prompts: Vec<Offered>,
    /// Asks a person on behalf of a running tool.
    asker: Option<Asker>,
    /// Reports to the room on behalf of a running tool.
    room: Option<RoomReporter>,
    slots: Slots,
    open: HashMap<JobKey, OpenCall>,
    /// Each task returns its number, because its key may belong to another call when the task has cleaned up.
    running: JoinSet<(JobKey, u64)>,
    begun: u64,
    reports: mpsc::UnboundedSender<report::Notice>,
    changes: mpsc::Receiver<()>,
    _watching: JoinSet<()>,
}

/// A tool, its source, and the validator of its arguments.
#[derive(Clone)]
struct Offered {
    tool: Tool,
    /// The source's name for it.
    own: ToolName,
    source: Arc<dyn AnySource>,
    check: ArgumentCheck,
}

/// A call that has a task.
struct OpenCall {
    /// The number of its task.
    number: u64,
    stop: StopSignal,
    start: Start,
}

impl Executor {
    /// Creates an executor for these sources with limits for the running and the waiting calls, and the receiver of
    /// its reports. Requires a tokio runtime.
    ///
    /// # Errors
    /// `Duplicate` if two tools have the same name, `Reserved` if a name starts with `bridge.`, `Schema` if a schema
    /// cannot be used, and the errors of [`ToolSource::check`](crate::runtime::source::ToolSource::check). A tool of a
    /// source that validates arguments itself is left out instead.
    pub(crate) fn with_caps(
        sources: Vec<Arc<dyn AnySource>>,
        running: usize,
        waiting: usize,
    ) -> Result<(Self, Reports), RegisterError> {
        sources.iter().try_for_each(|source| source.check())?;
        let mut left_out = Vec::new();
        let mut names = vec![BTreeSet::new(); sources.len()];
        let (offered, renamed) = list(&sources, &mut names, &[], |source, name, why| {
            if !source.validates_arguments() {
                return Err(why);
            }
            left_out.push((name, why));
            Ok(())
        })?;
        let (notices, reports) = Reports::new();
        // One unread notice covers all changes.
        let (changed, changes) = mpsc::channel(1);
        let mut watching = JoinSet::new();
        for source in &sources {
            watching.spawn(watch(Arc::clone(source), changed.clone()));
        }
        let executor = Self {
            sources,
            names,
            offered,
            left_out,
            renamed,
            prompts: Vec::new(),
            asker: None,
            room: None,
            slots: Slots::new(running, waiting),
            open: HashMap::new(),
            running: JoinSet::new(),
            begun: 0,
            reports: notices,
            changes,
            _watching: watching,
        };
        Ok((executor, reports))
    }

    /// Runs calls of this source's reserved tools too, without offering them. The source checks the arguments itself.
    pub(crate) fn answer_prompts(&mut self, source: &Arc<dyn AnySource>) {
        let offered = |tool| match ArgumentCheck::compile(&tool) {
            Ok(check) => Some(Offered { own: tool.name().clone(), tool, source: Arc::clone(source), check }),
            Err(problem) => {
                tracing::error!(%problem, "a prompt cannot be answered");
                None
            }
        };
        self.prompts = source.list().into_iter().filter_map(offered).collect();
    }

    /// Sets what asks a person on behalf of a running tool.
    pub(crate) fn ask_with(&mut self, asker: Option<Asker>) {
        self.asker = asker;
    }

    /// Sets what reports to the room on behalf of a running tool.
    pub(crate) fn report_with(&mut self, room: Option<RoomReporter>) {
        self.room = room;
    }

    /// Returns the tools that are offered.
    pub(crate) fn tools(&self) -> Vec<Tool> {
        self.offered.iter().map(|offered| offered.tool.clone()).collect()
    }

    /// Resolves when a source's list has changed. Call [`refresh`](Self::refresh) then.
    ///
    /// # Cancel safety
    /// Safe: a change that was not returned is returned by the next call.
    pub(crate) async fn changed(&mut self) {
        if self.changes.recv().await.is_none() {
            std::future::pending().await
        }
    }

    /// Reads the lists of the sources again. A tool that cannot be offered is left out. If a source panics, the tools
    /// stay unchanged.
    pub(crate) fn refresh(&mut self) {
        let mut left_out = Vec::new();
        let leave_out = |_: &Arc<dyn AnySource>, name, why| {
            left_out.push((name, why));
            Ok(())
        };
        match catch_panic(|| list(&self.sources, &mut self.names, &self.offered, leave_out)) {
            Ok(Ok((offered, renamed))) => {
                (self.offered, self.renamed, self.left_out) = (offered, renamed, left_out);
            }
            Ok(Err(_)) => {} // invalid tools were omitted above
            Err(panic) => {
                tracing::error!(at = %panic.place, "a source panicked; the tools stay as they were")
            }
        }
    }

    /// Returns the sources that have a name, and their health.
    pub(crate) fn statuses(&self) -> Vec<SourceStatus> {
        let status = |source: &Arc<dyn AnySource>| {
            asked(|| Some(SourceStatus { name: source.name()?.into(), health: source.health() }))
        };
        self.sources.iter().filter_map(status).collect()
    }

    /// Returns the notes of the sources about their tools, each with the source's name.
    pub(crate) fn notes(&self) -> Vec<(String, String)> {
        let notes = |source: &Arc<dyn AnySource>| {
            let (name, notes) = asked(|| (source.name().unwrap_or_default(), source.notes()));
            let notes = notes.into_iter().take(MAX_NOTES);
            notes.map(|note| (name.clone(), abridged(&note, MAX_NOTE).into_owned())).collect::<Vec<_>>()
        };
        self.sources.iter().flat_map(notes).collect()
    }

    /// Closes the sources, all at once.
    pub(crate) async fn close_sources(&self) {
        let mut closing = JoinSet::new();
        for source in &self.sources {
            let source = Arc::clone(source);
            // A task catches a panic, and keeps it from the others.
            closing.spawn(async move { timeout(SOURCE_CLOSE, source.close()).await.is_ok() });
        }
        while let Some(closed) = closing.join_next().await {
            if !closed.unwrap_or(false) {
                tracing::warn!(limit = ?SOURCE_CLOSE, "a source was not closed in time");
            }
        }
    }

    /// Returns the tools that were left out when the lists were last read, and the reasons.
    pub(crate) fn left_out(&self) -> &[(ToolName, RegisterError)] {
        &self.left_out
    }

    /// Returns the patterns of schemas that are not checked, with their tools.
    pub(crate) fn unchecked(&self) -> Vec<(ToolName, String)> {
        let all = self.offered.iter().flat_map(|offered| {
            let name = offered.tool.name();
            offered.check.unchecked().iter().map(|pattern| (name.clone(), pattern.clone()))
        });
        all.collect()
    }

    /// Returns the tools that are offered under another name than their source's.
    pub(crate) fn renamed(&self) -> &[Renamed] {
        &self.renamed
    }

    /// Returns whether the participant may join without this tool: its source validates arguments itself, so its
    /// definitions come from elsewhere.
    pub(crate) fn is_optional(&self, tool: &ToolName) -> bool {
        let offered = self.offered.iter().find(|offered| offered.tool.name() == tool);
        offered.is_some_and(|offered| offered.source.validates_arguments())
    }

    /// Checks arguments against their tool's schema, before a person is asked for consent.
    pub(crate) fn check(&self, tool: &ToolName, arguments: &Value) -> Result<(), ToolError> {
        let offered = self.offered.iter().find(|offered| offered.tool.name() == tool);
        offered.map_or(Ok(()), |offered| offered.check.check(arguments.clone()).map(drop))
    }

    /// Starts a call, or queues it until others end. `span` is the parent of everything that its function logs. Exactly
    /// one `Settled` follows in every case.
    pub(crate) fn execute(&mut self, job: Job, span: Span) {
        self.forget_ended();
        let reporter = Reporter::new(job.key, self.reports.clone());
        let mut known = self.offered.iter().chain(&self.prompts);
        let Some(offered) = known.find(|offered| *offered.tool.name() == job.tool) else {
            let text = format!("there is no tool named {:?}", job.tool);
            return reporter.settle(Err(ToolError::new(ErrorCode::UNKNOWN_TOOL, text)));
        };
        let slot = match self.slots.enter() {
            Ok(slot) => slot,
            Err(full) => return reporter.settle(Err(ToolError::new(ErrorCode::BUSY, full))),
        };
        let (stop, start) = (StopSignal::default(), Start::default());
        self.begun += 1;
        let (key, number) = (job.key, self.begun);
        self.open.insert(key, OpenCall { number, stop: stop.clone(), start: start.clone() });
        let room = RoomAccess { asker: self.asker.clone(), reporter: self.room.clone() };
        let call = run(Run { job, span, offered: offered.clone(), room, slot, stop, start, reporter });
        self.running.spawn(async move {
            call.await;
            (key, number)
        });
    }

    /// Stops a call. A call that has ended is unaffected.
    pub(crate) fn abort(&mut self, key: JobKey, reason: StopReason) {
        if let Some(call) = self.open.get(&key) {
            call.stop.stop(reason);
        }
    }

    /// Ends all calls that have not started, because the participant leaves. Returns them, for the outcome
    /// [`leaving`]: their callers can know that nothing ran.
    pub(crate) fn refuse_unstarted(&mut self) -> Vec<JobKey> {
        self.forget_ended();
        let refused = self.open.iter().filter(|(_, call)| call.start.refuse());
        refused
            .map(|(key, call)| {
                call.stop.stop(StopReason::Leaving);
                *key
            })
            .collect()
    }

    /// Resolves when no call runs any more, including cleanup.
    ///
    /// # Cancel safety
    /// Safe: calls that have not ended continue.
    pub(crate) async fn rest(&mut self) {
        while self.running.join_next().await.is_some() {}
    }

    fn forget_ended(&mut self) {
        while let Some(ended) = self.running.try_join_next() {
            if let Ok((key, number)) = ended
                && self.open.get(&key).is_some_and(|call| call.number == number)
            {
                self.open.remove(&key);
            }
        }
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor")
            .field("tools", &self.offered.len())
            .field("open", &self.running.len())
            .finish_non_exhaustive()
    }
}

/// Reports each change of one source's list.
async fn watch(source: Arc<dyn AnySource>, changed: mpsc::Sender<()>) {
    loop {
        let mut change = source.changed();
        let next = std::future::poll_fn(|cx| match catch_panic(|| change.as_mut().poll(cx)) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => std::task::Poll::Ready(Err(panic)),
        });
        if let Err(panic) = next.await {
            tracing::error!(at = %panic.place, "a source panicked; its list is no longer watched");
            return;
        }
        if changed.send(()).await.is_err() {
            return;
        }
        tokio::time::sleep(LIST_AGAIN).await;
    }
}

/// Returns what a source says of itself; nothing if it panics, which is logged.
fn asked<T: Default>(ask: impl FnOnce() -> T) -> T {
    catch_panic(ask).unwrap_or_else(|panic| {
        tracing::error!(at = %panic.place, "a source panicked");
        T::default()
    })
}

#[cfg(test)]
mod tests;

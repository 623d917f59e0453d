//! Runs a source's calls: so many at once, each within its limit, each with exactly one outcome.
//!
//! State: the tools that the sources offer, and a task for each open call. In: [`execute`](Executor::execute),
//! [`abort`](Executor::abort). Out: [`Reports`]. What a function does wrong — it panics, it never returns, it
//! hears no cancellation — ends here and harms neither its caller nor another call.

mod caught;
mod questions;
mod report;
mod run;
mod slots;

use std::{collections::HashMap, fmt, hash::Hash, sync::Arc, time::Duration};

use tokio::{sync::mpsc, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::{
    tool::{
        CallId, ErrorCode, RegisterError, Tool, ToolError, ToolName, TraceContext, schema::ArgumentCheck,
        source::AnySource,
    },
    transport::Identity,
    value::Value,
};

pub(crate) use self::questions::Questions;
pub(crate) use self::report::Done;
pub(crate) use self::report::Reports;
use self::{
    caught::quietly,
    report::Reporter,
    run::{Run, run},
    slots::Slots,
};

/// The shortest time between two looks at a source whose list changes all the time.
const LIST_AGAIN: Duration = Duration::from_millis(100);

/// Runs the calls of some sources. Dropping it stops them all.
pub(crate) struct Executor<K> {
    sources: Vec<Arc<dyn AnySource>>,
    offered: Vec<Offered>,
    /// Reserved tools, which are never offered.
    prompts: Vec<Offered>,
    slots: Slots,
    open: HashMap<K, (u64, CancellationToken)>,
    /// Each task answers with its number: by the time it has tidied up, its key may be another call's.
    running: JoinSet<(K, u64)>,
    begun: u64,
    reports: mpsc::UnboundedSender<report::Notice<K>>,
    changes: mpsc::Receiver<()>,
    _watching: JoinSet<()>,
}

/// One call to run.
#[derive(Debug)]
pub(crate) struct Job<K> {
    /// What the reports name it by. Unique among the calls that are not settled.
    pub(crate) key: K,
    pub(crate) tool: ToolName,
    pub(crate) arguments: Value,
    pub(crate) caller: Identity,
    pub(crate) call: CallId,
    /// The call's whole limit: what the text of a timeout names.
    pub(crate) limit: Duration,
    /// When that limit ends.
    pub(crate) deadline: Instant,
    /// What its function logs is inside.
    pub(crate) span: Span,
    /// The trace that its caller says it belongs to.
    pub(crate) trace: Option<TraceContext>,
}

/// A tool, who runs it, and what checks its arguments.
#[derive(Clone)]
struct Offered {
    tool: Tool,
    source: Arc<dyn AnySource>,
    check: ArgumentCheck,
}

impl<K: Copy + Eq + Hash + Send + Sync + 'static> Executor<K> {
    /// An executor for these sources, that runs so many calls at once and lets so many wait, and the other end of
    /// its reports. Needs a tokio runtime.
    ///
    /// # Errors
    /// `Duplicate` if two tools have one name, `Reserved` if one is `bridge.*`, `Schema` if a schema cannot be
    /// used, and what a source says of itself.
    pub(crate) fn with_caps(
        sources: Vec<Arc<dyn AnySource>>,
        running: usize,
        waiting: usize,
    ) -> Result<(Self, Reports<K>), RegisterError> {
        sources.iter().try_for_each(|source| source.check())?;
        let offered = list(&sources, &[], Err)?;
        let (notices, reports) = Reports::new();
        // One change that nobody looked at yet says as much as many.
        let (changed, changes) = mpsc::channel(1);
        let mut watching = JoinSet::new();
        for source in &sources {
            watching.spawn(watch(Arc::clone(source), changed.clone()));
        }
        let executor = Self {
            sources,
            offered,
            prompts: Vec::new(),
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

    /// Runs calls of the reserved tools of this source too, without offering them. It checks what it is given.
    pub(crate) fn answer_prompts(&mut self, source: &Arc<dyn AnySource>) {
        let offered = |tool| match ArgumentCheck::compile(&tool) {
            Ok(check) => Some(Offered { tool, source: Arc::clone(source), check }),
            Err(problem) => {
                tracing::error!(%problem, "a prompt is not answered");
                None
            }
        };
        self.prompts = source.list().into_iter().filter_map(offered).collect();
    }

    /// The tools that are offered.
    pub(crate) fn tools(&self) -> Vec<Tool> {
        self.offered.iter().map(|offered| offered.tool.clone()).collect()
    }

    /// Resolves when a source's list has changed; then [`refresh`](Self::refresh).
    ///
    /// # Cancel safety
    /// Safe: a change that was not reported is reported by the next one.
    pub(crate) async fn changed(&mut self) {
        if self.changes.recv().await.is_none() {
            std::future::pending().await
        }
    }

    /// Asks the sources again. A tool that cannot be offered is left out, with a warning; if a source panics, all
    /// stays as it was.
    pub(crate) fn refresh(&mut self) -> Vec<Tool> {
        let leave_out = |problem: RegisterError| {
            tracing::warn!(%problem, "a tool that came later is not offered");
            Ok(())
        };
        match quietly(|| list(&self.sources, &self.offered, leave_out)) {
            Ok(Ok(offered)) => self.offered = offered,
            Ok(Err(_)) => {} // nothing is an error here
            Err(panic) => {
                tracing::error!(at = %panic.place, "a source panicked; the tools stay as they were")
            }
        }
        self.tools()
    }

    /// Whether arguments fit their tool's schema: what does not is not worth a question to a person.
    pub(crate) fn check(&self, tool: &ToolName, arguments: &Value) -> Result<(), ToolError> {
        let offered = self.offered.iter().find(|offered| offered.tool.name() == tool);
        offered.map_or(Ok(()), |offered| offered.check.check(arguments.clone()).map(drop))
    }

    /// Starts a call, or lets it wait for others to end. Exactly one `Settled` follows, whatever happens.
    pub(crate) fn execute(&mut self, job: Job<K>) {
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
        let cancelled = CancellationToken::new();
        self.begun += 1;
        let (key, number) = (job.key, self.begun);
        self.open.insert(key, (number, cancelled.clone()));
        let call = run(Run { job, offered: offered.clone(), slot, cancelled, reporter });
        self.running.spawn(async move {
            call.await;
            (key, number)
        });
    }

    /// Stops a call. One that has ended already is left alone.
    pub(crate) fn abort(&mut self, key: K) {
        if let Some((_, token)) = self.open.get(&key) {
            token.cancel();
        }
    }

    /// Resolves when no call runs any more, tidying up included.
    ///
    /// # Cancel safety
    /// Safe: what has not ended goes on.
    pub(crate) async fn rest(&mut self) {
        while self.running.join_next().await.is_some() {}
    }

    fn forget_ended(&mut self) {
        while let Some(ended) = self.running.try_join_next() {
            if let Ok((key, number)) = ended
                && self.open.get(&key).is_some_and(|(of, _)| *of == number)
            {
                self.open.remove(&key);
            }
        }
    }
}

impl<K> fmt::Debug for Executor<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor")
            .field("tools", &self.offered.len())
            .field("open", &self.running.len())
            .finish_non_exhaustive()
    }
}

/// The sources' tools in their order. `problem` decides whether a bad one is an error or left out.
fn list(
    sources: &[Arc<dyn AnySource>],
    before: &[Offered],
    problem: impl Fn(RegisterError) -> Result<(), RegisterError>,
) -> Result<Vec<Offered>, RegisterError> {
    let mut offered: Vec<Offered> = Vec::new();
    for source in sources {
        let compile = |tool: &Tool| match source.validates_arguments() {
            true => Ok(ArgumentCheck::any_map()),
            false => ArgumentCheck::compile(tool),
        };
        for tool in source.list() {
            if tool.name().is_reserved() {
                problem(RegisterError::Reserved { name: tool.name().clone() })?;
                continue;
            }
            if offered.iter().any(|other| other.tool.name() == tool.name()) {
                problem(RegisterError::Duplicate { name: tool.name().clone() })?;
                continue;
            }
            // What is checked against does not change, so it is not compiled again.
            let known = before.iter().find(|known| {
                Arc::ptr_eq(&known.source, source)
                    && known.tool.name() == tool.name()
                    && known.tool.input_schema() == tool.input_schema()
            });
            let check = known.map_or_else(|| compile(&tool), |known| Ok(known.check.clone()));
            match check {
                Ok(check) => offered.push(Offered { tool, source: Arc::clone(source), check }),
                Err(error) => problem(error)?,
            }
        }
    }
    Ok(offered)
}

/// Reports each change of one source's list.
async fn watch(source: Arc<dyn AnySource>, changed: mpsc::Sender<()>) {
    loop {
        let mut change = source.changed();
        let next = std::future::poll_fn(|cx| match quietly(|| change.as_mut().poll(cx)) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => std::task::Poll::Ready(Err(panic)),
        });
        if let Err(panic) = next.await {
            tracing::error!(at = %panic.place, "a source panicked; changes of its list are not seen any more");
            return;
        }
        if changed.send(()).await.is_err() {
            return;
        }
        tokio::time::sleep(LIST_AGAIN).await;
    }
}

#[cfg(test)]
mod tests;

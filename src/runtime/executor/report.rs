//! Reports the events of a call: its start, its progress, and exactly one outcome.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::tool::{CallId, ErrorCode, JobKey, Outcome, Progress, ToolError, ToolName};

/// A report of a call.
#[derive(Debug)]
pub(crate) enum Done {
    /// The arguments are valid and the function starts.
    Started(JobKey),
    /// Progress. If several were not read, only the last is kept.
    Progress(JobKey, Progress),
    /// The tool's source warns of something that does not affect the call.
    Warning(Warning),
    /// The outcome; the last report of a call.
    Settled(JobKey, Outcome),
}

/// A warning of a tool's source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Warning {
    pub(crate) call: CallId,
    pub(crate) tool: ToolName,
    pub(crate) text: String,
}

/// Receives the reports of all calls, in order. It never holds more than four for one call.
#[derive(Debug)]
pub(crate) struct Reports(mpsc::UnboundedReceiver<Notice>);

#[derive(Debug)]
pub(super) enum Notice {
    Started(JobKey),
    /// Progress is available.
    Progress(JobKey, Latest),
    Warning(Warning),
    Settled(JobKey, Outcome),
}

impl Reports {
    pub(super) fn new() -> (mpsc::UnboundedSender<Notice>, Self) {
        let (notices, reports) = mpsc::unbounded_channel();
        (notices, Self(reports))
    }

    /// Returns the next report; `None` when the executor is dropped and no report is left.
    ///
    /// # Cancel safety
    /// Safe: no report is lost.
    pub(crate) async fn recv(&mut self) -> Option<Done> {
        loop {
            if let Some(done) = read(self.0.recv().await?) {
                return Some(done);
            }
        }
    }

    /// Returns the next report if there is one.
    pub(crate) fn try_recv(&mut self) -> Option<Done> {
        loop {
            if let Some(done) = read(self.0.try_recv().ok()?) {
                return Some(done);
            }
        }
    }
}

/// Reads the report of a notice; `None` if its progress was read before.
fn read(notice: Notice) -> Option<Done> {
    match notice {
        Notice::Started(key) => Some(Done::Started(key)),
        Notice::Warning(warning) => Some(Done::Warning(warning)),
        Notice::Settled(key, outcome) => Some(Done::Settled(key, outcome)),
        Notice::Progress(key, latest) => {
            latest.lock().waiting.take().map(|progress| Done::Progress(key, progress))
        }
    }
}

/// The last unread progress. A tool that reports faster than its reader reads uses no further memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Latest(Arc<Mutex<Unread>>);

#[derive(Debug, Default)]
struct Unread {
    waiting: Option<Progress>,
    warned: bool,
    settled: bool,
}

impl Latest {
    fn lock(&self) -> MutexGuard<'_, Unread> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports for one call, and settles it when it is dropped.
#[derive(Debug)]
pub(super) struct Reporter {
    key: JobKey,
    notices: mpsc::UnboundedSender<Notice>,
    latest: Latest,
}

impl Reporter {
    pub(super) fn new(key: JobKey, notices: mpsc::UnboundedSender<Notice>) -> Self {
        Self { key, notices, latest: Latest::default() }
    }

    pub(super) fn started(&self) {
        // Sending fails only when the participant is gone; no reader is left then.
        let _ = self.notices.send(Notice::Started(self.key));
    }

    /// Returns the function by which a tool's context reports progress.
    pub(super) fn progress(&self) -> impl Fn(Progress) + Send + Sync + 'static {
        let (key, notices, latest) = (self.key, self.notices.clone(), self.latest.clone());
        move |progress| {
            let mut slot = latest.lock();
            if !slot.settled && slot.waiting.replace(progress).is_none() {
                let _ = notices.send(Notice::Progress(key, latest.clone()));
            }
        }
    }

    /// Returns the function by which a tool's context warns. Only the first warning of a call is reported.
    pub(super) fn warning(&self, call: CallId, tool: ToolName) -> impl Fn(String) + Send + Sync + 'static {
        let (notices, latest) = (self.notices.clone(), self.latest.clone());
        move |text| {
            let mut slot = latest.lock();
            if !slot.settled && !std::mem::replace(&mut slot.warned, true) {
                let _ =
                    notices.send(Notice::Warning(Warning { call: call.clone(), tool: tool.clone(), text }));
            }
        }
    }

    pub(super) fn settle(self, outcome: Outcome) {
        self.once(outcome);
    }

    fn once(&self, outcome: Outcome) {
        let mut slot = self.latest.lock();
        if !std::mem::replace(&mut slot.settled, true) {
            if let Err(error) = &outcome {
                tracing::Span::current().record("error.type", error.code().as_str());
            }
            let _ = self.notices.send(Notice::Settled(self.key, outcome));
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.once(Err(ToolError::new(ErrorCode::CANCELLED, "the tool was stopped before it returned")));
    }
}

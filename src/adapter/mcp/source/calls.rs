//! The calls that a server has not answered: its questions, its progress and its warnings belong to them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
};

use serde::Deserialize;
use serde_json::Value as Json;

use crate::{Progress, ToolContext, adapter::jsonrpc::inbox::Ignored};

/// The open calls of one connection. A call's progress token is the id of its request.
#[derive(Default)]
pub(super) struct Calls {
    open: Mutex<BTreeMap<u64, Call>>,
    pub(super) ignored: Arc<Ignored>,
    /// The server has accepted a subscription.
    pub(super) is_subscribed: AtomicBool,
}

struct Call {
    context: ToolContext,
    /// The progress that was reported last.
    progress: f64,
}

/// The parameters of a notification of progress.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProgressParts {
    progress_token: Json,
    progress: f64,
    total: Option<f64>,
    message: Option<String>,
}

impl Calls {
    /// Notes a call. It is open until what this returns is dropped.
    pub(super) fn begin(&self, id: u64, context: &ToolContext) -> OpenCall<'_> {
        let call = Call { context: context.clone(), progress: f64::NEG_INFINITY };
        self.open().insert(id, call);
        OpenCall { calls: self, id }
    }

    /// Returns the call that was sent last and has not ended: a question that names no call is asked on its behalf.
    pub(super) fn latest(&self) -> Option<ToolContext> {
        self.open().last_key_value().map(|(_, call)| call.context.clone())
    }

    /// Reports progress to its call. What belongs to no call, or does not increase, is counted.
    pub(super) fn progress(&self, progress: Option<ProgressParts>) {
        if !progress.is_some_and(|progress| self.report(progress)) {
            self.ignored.count_stale();
        }
    }

    fn report(&self, progress: ProgressParts) -> bool {
        let mut open = self.open();
        let Some(call) = progress.progress_token.as_u64().and_then(|id| open.get_mut(&id)) else {
            return false;
        };
        if progress.progress <= call.progress {
            return false;
        }
        call.progress = progress.progress;
        let context = call.context.clone();
        drop(open);
        let report = match progress.total {
            Some(total) => Progress::of(progress.progress, total),
            None => Progress::so_far(progress.progress),
        };
        context.progress(match progress.message {
            Some(message) => report.message(message),
            None => report,
        });
        true
    }

    /// Warns all open calls.
    pub(super) fn warn(&self, text: &str) {
        let calls: Vec<ToolContext> = self.open().values().map(|call| call.context.clone()).collect();
        calls.iter().for_each(|call| call.warn(text));
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Call>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that is open.
pub(super) struct OpenCall<'a> {
    calls: &'a Calls,
    id: u64,
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        self.calls.open().remove(&self.id);
    }
}

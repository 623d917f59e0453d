//! Keeps the calls that a server has not answered: its questions, its progress and its warnings belong to them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
};

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use crate::{
    Progress, ToolContext,
    adapter::jsonrpc::{id::Id, inbox::Ignored},
};

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
    /// Cancelled when the call has ended.
    over: CancellationToken,
}

/// A server's question, which names no call: the call for which this source asks a person, and those it may belong to.
pub(super) struct Asked {
    /// The call for which the person is asked.
    pub(super) context: ToolContext,
    /// The calls that were open when the question came: it may belong to any of them.
    open: Vec<CancellationToken>,
}

impl Asked {
    /// Resolves when all calls have ended that the question may belong to.
    pub(super) async fn over(&self) {
        for call in &self.open {
            call.cancelled().await;
        }
    }
}

/// The parameters of a notification of progress.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProgressParts {
    progress_token: Box<RawValue>,
    progress: f64,
    total: Option<f64>,
    message: Option<String>,
}

impl Calls {
    /// Notes a call. It is open until what this returns is dropped.
    pub(super) fn begin(&self, id: u64, context: &ToolContext) -> OpenCall<'_> {
        let call =
            Call { context: context.clone(), progress: f64::NEG_INFINITY, over: CancellationToken::new() };
        self.open().insert(id, call);
        OpenCall { calls: self, id }
    }

    /// Returns where a question that has come now belongs, or `None` if no call is open. This source asks the person for the
    /// call that it sent last and that has not ended.
    pub(super) fn asked(&self) -> Option<Asked> {
        let open = self.open();
        let context = open.last_key_value()?.1.context.clone();
        Some(Asked { context, open: open.values().map(|call| call.over.clone()).collect() })
    }

    /// Reports progress to its call. What belongs to no call, or does not increase, is counted.
    pub(super) fn progress(&self, progress: Option<ProgressParts>) {
        if !progress.is_some_and(|progress| self.report(progress)) {
            self.ignored.count_stale();
        }
    }

    fn report(&self, progress: ProgressParts) -> bool {
        let mut open = self.open();
        let token = Id::read(progress.progress_token.get().as_bytes()).and_then(|token| token.whole());
        let Some(call) = token.and_then(|id| open.get_mut(&id)) else { return false };
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
        if let Some(call) = self.calls.open().remove(&self.id) {
            call.over.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, time::Duration};

    use futures_util::poll;

    use super::*;

    #[test]
    fn progress_names_its_call_by_a_number_in_any_form() {
        let (calls, context) = (Calls::default(), ToolContext::new("caller", Duration::from_secs(60)));
        let _open = calls.begin(7, &context);
        for (progress, (token, is_reported)) in ["7", "7.0", "\"7\"", "8", "\"x\"", "7.5", "null"]
            .into_iter()
            .zip([true, true, true, false, false, false, false])
            .enumerate()
        {
            let parts = format!(r#"{{"progressToken":{token},"progress":{progress}}}"#);
            assert_eq!(calls.report(serde_json::from_str(&parts).unwrap()), is_reported, "{token}");
        }
    }

    #[tokio::test]
    async fn question_is_over_when_all_calls_have_ended_that_were_open_when_it_came() {
        let (calls, context) = (Calls::default(), ToolContext::new("caller", Duration::from_secs(60)));
        assert!(calls.asked().is_none());
        let (first, second) = (calls.begin(1, &context), calls.begin(2, &context));
        let asked = calls.asked().unwrap();
        let _later = calls.begin(3, &context);
        let mut over = pin!(asked.over());
        drop(second);
        assert!(poll!(&mut over).is_pending(), "it may belong to the first call");
        drop(first);
        assert!(poll!(&mut over).is_ready());
    }
}

//! Reports the progress of a call to its host.

use rmcp::{
    Peer, RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
    service::RequestContext,
};

use crate::Progress;
use tokio_util::sync::CancellationToken;

/// Sends the progress of one call to a host that asked for it.
pub(super) struct Reporter {
    to: Option<(Peer<RoleServer>, ProgressToken)>,
    closed: CancellationToken,
    last: Option<f64>,
}

impl Reporter {
    pub(super) fn new(context: &RequestContext<RoleServer>, closed: &CancellationToken) -> Self {
        let token = context.meta.get_progress_token();
        Self { to: token.map(|token| (context.peer.clone(), token)), closed: closed.clone(), last: None }
    }

    /// Sends one step. A step without a text and a number, such as the tool's start, is not sent.
    pub(super) async fn report(&mut self, step: &Progress) {
        let Some((peer, token)) = &self.to else { return };
        let Some(done) = next(self.last, step) else { return };
        self.last = Some(done);
        let mut sent = ProgressNotificationParam::new(token.clone(), done);
        sent.total = step.total();
        sent.message.clone_from(&step.message);
        // A host that is gone is noticed elsewhere. When a host sends nothing more, `rmcp` waits for the results of its
        // calls, but sends no notification and does not report that.
        let _ = self.closed.run_until_cancelled(peer.notify_progress(sent)).await;
    }
}

/// Returns the number of the next step: MCP demands that it increases. A text without a number counts as one unit, or
/// as the least possible increase where the tool counts itself.
fn next(last: Option<f64>, step: &Progress) -> Option<f64> {
    match (step.done(), last) {
        (Some(done), None) => Some(done),
        (Some(done), Some(last)) if done > last => Some(done),
        (None, _) if step.message.is_none() => None,
        (Some(_), Some(last)) => step.message.is_some().then(|| last.next_up()),
        (None, Some(last)) if last.fract() != 0.0 => Some(last.next_up()),
        (None, last) => Some(last.unwrap_or(0.0) + 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_that_does_not_increase_is_sent_only_with_a_text() {
        assert_eq!(next(None, &Progress::started()), None);
        assert_eq!(next(None, &Progress::from("reading")), Some(1.0));
        assert_eq!(next(None, &Progress::of(0, 100)), Some(0.0));
        assert_eq!(next(Some(1.0), &Progress::from("reading")), Some(2.0));
        assert_eq!(next(Some(0.5), &Progress::of(0.75, 1)), Some(0.75));
        assert_eq!(next(Some(0.75), &Progress::of(0.5, 1)), None);
        assert!(next(Some(0.75), &Progress::from("almost")).unwrap() > 0.75);
        assert!(next(Some(2.0), &Progress::of(2, 2).message("done")).unwrap() > 2.0);
    }
}

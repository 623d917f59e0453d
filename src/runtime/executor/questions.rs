//! Keeps the open questions to a person. Each ends as yes or no, or is withdrawn.

use std::{collections::HashMap, fmt, future::Future};

use tokio::task::{AbortHandle, JoinSet};

use super::catch_panic::Caught;
use crate::{
    tool::{JobKey, ToolError},
    value::Value,
};

/// The open questions. The session limits their number.
pub(crate) struct Questions {
    running: JoinSet<(JobKey, bool)>,
    open: HashMap<JobKey, AbortHandle>,
}

impl Questions {
    pub(crate) fn new() -> Self {
        Self { running: JoinSet::new(), open: HashMap::new() }
    }

    /// Asks a question. One that panics counts as no.
    pub(crate) fn ask(&mut self, key: JobKey, question: impl Future<Output = bool> + Send + 'static) {
        let handle = self.running.spawn(async move {
            let no = || Err(ToolError::cancelled());
            let asked = async { if question.await { Ok(Value::empty()) } else { no() } };
            (key, Caught::new(asked).await.is_ok())
        });
        self.open.insert(key, handle);
    }

    /// Withdraws a question by dropping its future. Returns whether it was open.
    pub(crate) fn withdraw(&mut self, key: JobKey) -> bool {
        let found = self.open.remove(&key);
        if let Some(handle) = &found {
            handle.abort();
        }
        found.is_some()
    }

    /// Returns the next answer. Never resolves while no question is open.
    ///
    /// # Cancel safety
    /// Safe: no answer is lost.
    pub(crate) async fn answer(&mut self) -> (JobKey, bool) {
        loop {
            match self.running.join_next().await {
                Some(Ok((key, allowed))) if self.open.remove(&key).is_some() => return (key, allowed),
                Some(_) => {} // withdrawn
                None => return std::future::pending().await,
            }
        }
    }
}

impl fmt::Debug for Questions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Questions").field("open", &self.open.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn question_ends_as_yes_or_no_and_a_panic_counts_as_no() {
        let mut questions = Questions::new();
        questions.ask(JobKey(1), async { true });
        assert_eq!(questions.answer().await, (JobKey(1), true));
        questions.ask(JobKey(2), async { panic!("planted") });
        assert_eq!(questions.answer().await, (JobKey(2), false));
    }

    #[tokio::test]
    async fn withdrawn_question_is_dropped() {
        let (dropped, drops) = tokio::sync::oneshot::channel::<()>();
        let mut questions = Questions::new();
        questions.ask(JobKey(1), async move {
            let _held = dropped;
            std::future::pending().await
        });
        assert!(questions.withdraw(JobKey(1)) && !questions.withdraw(JobKey(1)));
        questions.ask(JobKey(2), async { true });
        assert_eq!(questions.answer().await, (JobKey(2), true));
        assert!(drops.await.is_err(), "its sender went with the future");
    }
}

//! Keeps the requests of this side that have no answer yet.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

use super::{
    error::{BATCH, SHAPE},
    failure::Failure,
    id::Id,
    rules::Rules,
};
use crate::{
    adapter::{json::DocumentError, words},
    value::prefix,
};

/// The longest id of a message in an error, in bytes.
const MAX_SHOWN_ID: usize = 64;

/// What became of a request.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::adapter) enum Reply {
    /// The text of its result.
    Result(String),
    /// The other side has answered with this error.
    Error(Failure),
    /// Its answer cannot be read.
    Unreadable(Reason),
    /// Its answer does not come, for this reason. The connection may go on.
    #[cfg_attr(not(all(feature = "mcp", unix)), expect(dead_code, reason = "lines are written or not"))]
    Lost(String),
}

/// Why a message cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::adapter) enum Reason {
    #[error("{0}")]
    Document(#[from] DocumentError),
    #[error("{SHAPE}")]
    Shape,
    #[error("it has {size} bytes; the limit is {limit}")]
    TooLong { size: usize, limit: usize },
    #[error("{BATCH}")]
    Batch,
    #[error("it answers with ids that were not asked ({named} for {asked})")]
    OtherId { named: String, asked: u64 },
}

/// Why a request cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::adapter) enum Refused {
    /// As many requests as may be open are open already.
    TooMany(usize),
    /// The connection has ended.
    Ended,
}

/// The open requests of a connection.
pub(in crate::adapter) struct Open {
    state: Mutex<State>,
    /// The most requests that are open at once.
    most: usize,
    rules: &'static Rules,
}

#[derive(Default)]
struct State {
    last: u64,
    waiting: BTreeMap<u64, Waiting>,
    /// A request that was given up, and whose answer may still come.
    given_up: Option<u64>,
    /// An answer has named a request that was open.
    has_matched: bool,
    has_ended: bool,
}

/// A request that waits for its answer.
struct Waiting {
    answer: oneshot::Sender<Reply>,
    /// It stays open, and an error without an id is not its answer.
    is_stream: bool,
}

impl Open {
    pub(super) fn new(most: usize, rules: &'static Rules) -> Self {
        Self { state: Mutex::default(), most, rules }
    }

    /// Opens a request. Returns its id, and what receives its answer.
    pub(super) fn begin(&self, is_stream: bool) -> Result<(u64, oneshot::Receiver<Reply>), Refused> {
        let (answer, answered) = oneshot::channel();
        let mut state = self.state();
        if state.has_ended {
            return Err(Refused::Ended);
        }
        if state.waiting.len() >= self.most {
            return Err(Refused::TooMany(self.most));
        }
        state.last += 1;
        let id = state.last;
        state.waiting.insert(id, Waiting { answer, is_stream });
        Ok((id, answered))
    }

    /// Forgets a request. Returns whether it was open. Its answer has no effect.
    pub(super) fn forget(&self, id: u64) -> bool {
        self.state().waiting.remove(&id).is_some()
    }

    /// Forgets a request that is followed by another one for the same thing. An error without an id is its answer, and not
    /// that of the other one.
    #[cfg(all(feature = "mcp", unix))]
    pub(super) fn give_up(&self, id: u64) {
        let mut state = self.state();
        if state.waiting.remove(&id).is_some() {
            state.given_up = Some(id);
        }
    }

    /// Returns whether a request is open.
    #[cfg(all(feature = "mcp", unix))]
    pub(in crate::adapter) fn has(&self, id: u64) -> bool {
        self.state().waiting.contains_key(&id)
    }

    /// Ends a request with its answer. Returns whether it was open.
    #[cfg(all(feature = "mcp", unix))]
    pub(in crate::adapter) fn end(&self, id: u64, answer: Reply) -> bool {
        let waiting = self.state().waiting.remove(&id);
        waiting.is_some_and(|waiting| waiting.answer.send(answer).is_ok())
    }

    /// Ends the request that an answer names. Returns whether one was open.
    ///
    /// With odd ids ([`Rules::reads_odd_ids`]): if nothing was answered before, and the answer names a request that was never
    /// made, nothing will be answered. Then the only request ends.
    pub(in crate::adapter) fn answered(&self, id: &Id, answer: Reply) -> bool {
        let mut state = self.state();
        let number = id.whole().filter(|_| id.is_number() || self.rules.reads_odd_ids);
        if let Some(waiting) = number.and_then(|number| state.waiting.remove(&number)) {
            state.has_matched = true;
            drop(state);
            return waiting.answer.send(answer).is_ok();
        }
        let was_made = number.is_some_and(|number| (1..=state.last).contains(&number));
        if was_made {
            state.given_up.take_if(|given_up| Some(*given_up) == number);
        } else if !state.has_matched
            && self.rules.reads_odd_ids
            && let Some(asked) = state.only()
        {
            let named = words::line(prefix(id.as_json(), MAX_SHOWN_ID));
            let waiting = state.waiting.remove(&asked);
            drop(state);
            let answer = Reply::Unreadable(Reason::OtherId { named, asked });
            return waiting.is_some_and(|waiting| waiting.answer.send(answer).is_ok());
        }
        false
    }

    /// Ends the request that an answer without an id means: `of`, if the transport knows that, or the only one that is open.
    /// Returns whether there is one: of several, none can be told.
    pub(in crate::adapter) fn answered_unnamed(&self, of: Option<u64>, answer: Reply) -> bool {
        let mut state = self.state();
        if of.is_none() && state.given_up.take().is_some() {
            return true; // a side that starts slowly answers that one first
        }
        let meant = of.filter(|of| state.waiting.contains_key(of)).or_else(|| state.only());
        let waiting = meant.and_then(|id| state.waiting.remove(&id));
        drop(state);
        waiting.is_some_and(|waiting| waiting.answer.send(answer).is_ok())
    }

    /// Ends all requests without an answer, also those that follow.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.has_ended = true;
        let ended = std::mem::take(&mut state.waiting);
        drop((state, ended));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the only request that is open. One that stays open does not count.
    fn only(&self) -> Option<u64> {
        let mut open = self.waiting.iter().filter(|(_, waiting)| !waiting.is_stream).map(|(id, _)| *id);
        open.next().filter(|_| open.next().is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::jsonrpc::rules::ACP;

    /// Rules with odd ids.
    const ODD: Rules = Rules { reads_odd_ids: true, ..ACP };

    fn id(text: &dyn std::fmt::Display) -> Id {
        Id::read(text.to_string().as_bytes()).unwrap()
    }

    fn error() -> Reply {
        Reply::Error(Failure::of("no"))
    }

    #[test]
    fn error_without_an_id_is_the_answer_to_the_request_of_its_stream_or_to_the_only_one() {
        let open = Open::new(8, &ODD);
        let (_, _stream) = open.begin(true).unwrap();
        let (_, mut first) = open.begin(false).unwrap();
        assert!(open.answered_unnamed(None, error()));
        assert_eq!(first.try_recv(), Ok(error()), "a request that stays open does not count");
        let mut several = [open.begin(false).unwrap(), open.begin(false).unwrap()];
        assert!(!open.answered_unnamed(None, error()), "none of them can be told");
        let second = several[1].0;
        assert!(open.answered_unnamed(Some(second), error()));
        assert_eq!(several[1].1.try_recv(), Ok(error()));
        assert!(several[0].1.try_recv().is_err());
    }

    #[cfg(all(feature = "mcp", unix))]
    #[test]
    fn answer_to_a_request_that_was_given_up_is_ignored() {
        for names_it in [true, false] {
            let open = Open::new(8, &ODD);
            let (first, _) = open.begin(false).unwrap();
            open.give_up(first);
            let (second, mut answered) = open.begin(false).unwrap();
            match names_it {
                true => assert!(!open.answered(&id(&first), error())),
                false => assert!(open.answered_unnamed(None, error())),
            }
            assert!(answered.try_recv().is_err(), "the other request has ended");
            assert!(open.answered_unnamed(None, error()));
            assert_eq!(answered.try_recv(), Ok(error()));
            assert!(!open.has(second));
        }
    }

    #[test]
    fn id_may_be_the_text_of_its_number_only_where_odd_ids_are_read() {
        let open = Open::new(8, &ODD);
        let (id, mut answered) = open.begin(false).unwrap();
        assert!(open.answered(&self::id(&format!("\" {id}\"")), error()));
        assert_eq!(answered.try_recv(), Ok(error()));
        let strict = Open::new(8, &ACP);
        let (id, mut answered) = strict.begin(false).unwrap();
        for odd in [&*format!("\"{id}\""), "999", "-1", "\"x\""] {
            assert!(!strict.answered(&self::id(&odd), error()), "{odd}");
        }
        assert!(answered.try_recv().is_err());
    }

    #[test]
    fn first_answer_with_an_id_that_was_not_asked_ends_the_request() {
        let open = Open::new(8, &ODD);
        let (asked, mut answered) = open.begin(false).unwrap();
        assert!(open.answered(&id(&"\"x\""), error()));
        let named = r#""x""#.to_owned();
        assert_eq!(answered.try_recv(), Ok(Reply::Unreadable(Reason::OtherId { named, asked })));
        // Later it is one answer too many.
        let (first, _first) = open.begin(false).unwrap();
        assert!(open.answered(&id(&first), error()) || !open.has(first));
        let (_, mut second) = open.begin(false).unwrap();
        assert!(!open.answered(&id(&"\"x\""), error()));
        assert!(second.try_recv().is_err());
    }

    #[test]
    fn requests_are_limited_and_none_follows_the_end() {
        let open = Open::new(1, &ACP);
        let (_, mut answered) = open.begin(false).unwrap();
        assert_eq!(open.begin(false).unwrap_err(), Refused::TooMany(1));
        open.close();
        assert_eq!(answered.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert_eq!(open.begin(false).unwrap_err(), Refused::Ended);
    }
}

//! Holds the state of a toolset's calls.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    time::Instant,
};

use super::{Answer, Effect, Question, Refusal};
use crate::{
    ToolName,
    adapter::{
        rap::{
            document::Event,
            source::{
                counts::{Counters, count},
                rate::Rate,
                reports::{Origin, Reports},
            },
        },
        web::secret::Digest,
    },
};

/// The most calls whose tokens are known. Beyond it the settled call that ends next is forgotten.
pub(super) const MAX_CALLS: usize = 4_096;

/// The most tokens of the past that are told apart from unknown ones.
const MAX_PAST: usize = 4_096;

/// The most questions of one call. A tool that asks more often hears that it should not.
pub(super) const MAX_QUESTIONS: usize = 16;

/// The most events of a call that are kept until its result says whether it has started a subscription.
pub(super) const MAX_EARLY: usize = 16;

/// The most bytes of them. The last event of a subscription is kept all the same, then as the only one.
pub(super) const MAX_EARLY_BYTES: usize = 256 * 1024;

#[derive(Default)]
pub(super) struct State {
    pub(super) entries: HashMap<Digest, Entry>,
    pub(super) by_id: HashMap<String, Digest>,
    /// When the entries end. Those of subscriptions are not in it.
    pub(super) ends: BTreeSet<(Instant, Digest)>,
    pub(super) past: VecDeque<Digest>,
    pub(super) is_past: HashSet<Digest>,
    pub(super) subscriptions: usize,
    pub(super) unknown: Option<Rate>,
}

pub(super) struct Entry {
    pub(super) id: String,
    pub(super) call_id: Option<String>,
    pub(super) tool: ToolName,
    pub(super) is_structured: bool,
    pub(super) reports: Reports,
    pub(super) phase: Phase,
    /// How many questions it has asked.
    pub(super) asked: usize,
    /// Events that came before the result.
    pub(super) early: Vec<(Event, String)>,
    pub(super) is_subscribed: bool,
    pub(super) end: Instant,
    pub(super) rate: Rate,
    pub(super) bodies: Arc<Semaphore>,
    /// What went wrong with its invocation, or with its last message.
    pub(super) trouble: Option<String>,
}

pub(super) enum Phase {
    Open {
        result: oneshot::Sender<Result<Answer, String>>,
        questions: mpsc::Sender<Question>,
    },
    /// The time of the call is over, and it has no result.
    Late,
    Settled,
}

impl Entry {
    pub(super) fn origin(&self) -> Origin {
        Origin { id: self.id.clone(), tool: self.tool.clone() }
    }

    /// Keeps an event until the result says whether it belongs to a subscription: requests may overtake each other. The last
    /// event of a subscription is always kept, in the place of those before it, because nothing else ends the subscription.
    pub(super) fn keep(&mut self, event: Event, text: &str, counters: &Counters) -> Effect {
        let is_over = self.early.last().is_some_and(|(event, _)| event.is_final);
        let is_open = matches!(self.phase, Phase::Open { .. });
        if is_over || !is_open || !self.reports.can_report() {
            return Effect::Dropped;
        }
        while event.is_final && !self.has_room(text) && self.early.pop().is_some() {
            count(&counters.dropped);
        }
        if !event.is_final && !self.has_room(text) {
            return Effect::Dropped;
        }
        self.early.push((event, text.to_owned()));
        Effect::Early
    }

    fn has_room(&self, text: &str) -> bool {
        let bytes: usize = self.early.iter().map(|(_, text)| text.len()).sum();
        self.early.len() < MAX_EARLY && bytes + text.len() <= MAX_EARLY_BYTES
    }

    pub(super) fn ask(&mut self, question: Question) -> Result<Effect, Refusal> {
        let Phase::Open { questions, .. } = &self.phase else { return Ok(Effect::Dropped) };
        if self.asked >= MAX_QUESTIONS {
            return Err(Refusal::TooMany);
        }
        self.asked += 1;
        match questions.try_send(question) {
            Ok(()) => Ok(Effect::Accepted),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Refusal::TooMany),
            Err(mpsc::error::TrySendError::Closed(_)) => Ok(Effect::Dropped),
        }
    }
}

impl State {
    /// Forgets the calls whose time is over.
    pub(super) fn forget(&mut self, now: Instant) {
        while let Some((end, digest)) = self.ends.first().copied().filter(|(end, _)| *end <= now) {
            self.ends.remove(&(end, digest));
            self.remove(&digest);
        }
    }

    /// Forgets a call if there are too many.
    pub(super) fn make_place(&mut self) {
        if self.entries.len() >= MAX_CALLS {
            // At most as many are open as a participant runs at once.
            let is_open = |digest: &Digest| {
                self.entries.get(digest).is_some_and(|it| matches!(it.phase, Phase::Open { .. }))
            };
            let next = self.ends.iter().map(|(_, digest)| *digest).find(|digest| !is_open(digest));
            if let Some(digest) = next {
                self.remove(&digest);
            }
        }
    }

    pub(super) fn remove(&mut self, digest: &Digest) {
        let Some(entry) = self.entries.remove(digest) else { return };
        self.ends.remove(&(entry.end, *digest));
        self.by_id.remove(&entry.id);
        if self.past.len() >= MAX_PAST
            && let Some(oldest) = self.past.pop_front()
        {
            self.is_past.remove(&oldest);
        }
        self.past.push_back(*digest);
        self.is_past.insert(*digest);
    }
}

//! The choice among several clients that offer a tool, or among several assistants that a client may bind.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use super::{Context, Peers, Remote};
use crate::{
    tool::Tool,
    transport::{Identity, Participant},
};

/// Which of several is meant.
///
/// An assistant asks it when several clients offer one tool, and neither the call names one nor a pin does; a client
/// when several participants may be its assistant and none was configured. Whoever is bound stays bound until it
/// leaves: a client asks it only then.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum SelectionPolicy {
    /// Nobody: the call is [ambiguous](crate::CallError::Ambiguous), the client binds none and
    /// [says so](crate::protocol::session::Event::AmbiguousAssistant).
    #[default]
    Nobody,
    /// The client that registered first, or the assistant that sent a frame first. A participant that returns within the grace
    /// period keeps its place.
    First,
    /// The client that registered last, or the assistant whose first frame came last. A changed registration does not count
    /// as a new one.
    Last,
    /// The participant that sent the latest frame.
    LastHeard,
    /// The participant that a function names; see [`by`](SelectionPolicy::by).
    By(SelectionFn),
}

/// Chooses one of several for a tool, or an assistant if there is no tool: see [`SelectionPolicy::by`].
pub type SelectionFn = Arc<dyn Fn(Option<&str>, &[Candidate]) -> Option<Identity> + Send + Sync>;

impl SelectionPolicy {
    /// Selects with a function. It receives the name of the tool, or `None` when a client selects its assistant, and the
    /// candidates in the order of [`SelectionPolicy::First`], and returns the identity of one of them.
    ///
    /// If the function returns `None` or an unknown identity, or panics, the policy acts as [`SelectionPolicy::Nobody`]. The
    /// function runs while the session is locked, so it must be quick. Using a handle of the same participant in it panics.
    ///
    /// ```
    /// use toolbridge::SelectionPolicy;
    ///
    /// let kitchen_first = SelectionPolicy::by(|_tool, candidates| {
    ///     let kitchen = candidates.iter().find(|it| it.identity.as_str().starts_with("kitchen"));
    ///     kitchen.or(candidates.first()).map(|it| it.identity.clone())
    /// });
    /// # let _ = kitchen_first;
    /// ```
    pub fn by(
        choose: impl Fn(Option<&str>, &[Candidate]) -> Option<Identity> + Send + Sync + 'static,
    ) -> Self {
        Self::By(Arc::new(choose))
    }
}

impl fmt::Debug for SelectionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nobody => "Nobody",
            Self::First => "First",
            Self::Last => "Last",
            Self::LastHeard => "LastHeard",
            Self::By(_) => "By(..)",
        })
    }
}

/// One of several who may be meant.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Candidate {
    /// Who.
    pub identity: Identity,
    /// What the room says of it, if it was announced.
    pub participant: Option<Participant>,
    /// The tool that is asked for, as it registered it. None of an assistant, and of what is never registered.
    pub tool: Option<Tool>,
}

impl Peers {
    /// The one of several that the policy selects.
    pub(crate) fn select(&self, cx: &Context, tool: Option<&str>, among: &[Identity]) -> Option<Identity> {
        let mut known: Vec<(&Identity, &Remote)> =
            among.iter().filter_map(|id| self.remotes.get_key_value(id)).collect();
        known.sort_by_key(|(_, remote)| remote.standing.rank());
        let one = match &cx.config.choose {
            SelectionPolicy::Nobody => None,
            SelectionPolicy::First => known.first().map(|(id, _)| *id),
            SelectionPolicy::Last => known.last().map(|(id, _)| *id),
            SelectionPolicy::LastHeard => {
                known.iter().max_by_key(|(_, remote)| remote.heard_at).map(|(id, _)| *id)
            }
            SelectionPolicy::By(chooser) => return named_by(chooser, tool, &known),
        };
        one.cloned()
    }
}

fn named_by(chooser: &SelectionFn, tool: Option<&str>, known: &[(&Identity, &Remote)]) -> Option<Identity> {
    let registered =
        |remote: &Remote| remote.tools.iter().find(|it| Some(it.name().as_str()) == tool).cloned();
    let candidates: Vec<_> = known
        .iter()
        .map(|(id, remote)| Candidate {
            identity: (*id).clone(),
            participant: remote.participant.clone(),
            tool: registered(remote),
        })
        .collect();
    // The session must be whole whatever the author's function does: a panic selects nobody.
    let named = catch_unwind(AssertUnwindSafe(|| chooser(tool, &candidates))).unwrap_or_else(|_| {
        tracing::error!("the function that chooses panicked; nobody is chosen");
        None
    })?;
    if !candidates.iter().any(|it| it.identity == named) {
        tracing::warn!(%named, "the function that chooses named somebody else; nobody is chosen");
        return None;
    }
    Some(named)
}

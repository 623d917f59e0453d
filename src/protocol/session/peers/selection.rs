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

/// The policy for choosing among several participants.
///
/// An assistant uses it when several clients offer one tool, and neither the call nor a pin names one. A client uses it
/// when several participants may be its assistant and none was configured. A bound assistant stays bound until it
/// leaves.
/// leaves: a client asks it only then.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum SelectionPolicy {
    /// Selects none. The call fails as [ambiguous](crate::CallError::Ambiguous); a client binds no assistant and
    /// [reports the candidates](crate::protocol::session::Event::AmbiguousAssistant).
    #[default]
    Nobody,
    /// The client that registered first, or the assistant that sent a frame first. A participant that returns within
    /// the grace period keeps its rank.
    First,
    /// The client that registered last, or the assistant whose first frame came last. A changed registration does not count
    /// as a new one.
    Last,
    /// The participant that sent the latest frame.
    LastHeard,
    /// The participant that a function names; see [`by`](SelectionPolicy::by).
    By(SelectionFn),
}

/// Selects one of several candidates for a tool, or an assistant if there is no tool. See [`SelectionPolicy::by`].
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

/// A candidate for the selection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Candidate {
    /// The candidate's identity.
    pub identity: Identity,
    /// The room's description of the candidate, if it was announced.
    pub participant: Option<Participant>,
    /// The requested tool, as the candidate registered it. `None` for an assistant, and for a tool that is never
    /// registered.
    pub tool: Option<Tool>,
}

impl Peers {
    /// Returns the candidate that the policy selects.
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
    // The session must stay consistent whatever the author's function does: a panic selects none.
    let named = catch_unwind(AssertUnwindSafe(|| chooser(tool, &candidates))).unwrap_or_else(|_| {
        tracing::error!("the selection function panicked; no candidate is selected");
        None
    })?;
    if !candidates.iter().any(|it| it.identity == named) {
        tracing::warn!(%named, "the selection function returned an unknown identity; no candidate is selected");
        return None;
    }
    Some(named)
}

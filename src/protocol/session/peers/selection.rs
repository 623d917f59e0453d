//! Applies the policy for choosing among several participants.

use std::{collections::BinaryHeap, sync::Arc};

use super::{Context, Peers, Remote};
use crate::{
    protocol::session::{
        Output,
        keys::{CallKey, SelectionKey},
        selection::{Candidate, Selection, SelectionPolicy},
    },
    transport::Identity,
};

/// The result of applying the policy.
#[derive(Debug)]
pub(crate) enum Selected {
    /// This candidate, or none.
    Now(Option<Identity>),
    /// The author's function selects, which the driver runs.
    ByFunction,
}

impl Peers {
    /// Applies the policy to these participants.
    pub(crate) fn select(&self, cx: &Context, among: &[Identity]) -> Selected {
        let known = self.ranked(among);
        let one = match &cx.config.choose {
            SelectionPolicy::Nobody => None,
            SelectionPolicy::First => known.first().map(|(id, _)| *id),
            SelectionPolicy::Last => known.last().map(|(id, _)| *id),
            SelectionPolicy::LastHeard => {
                known.iter().max_by_key(|(_, remote)| remote.heard_at()).map(|(id, _)| *id)
            }
            SelectionPolicy::By(_) => return Selected::ByFunction,
        };
        Selected::Now(one.cloned())
    }

    /// Asks the driver to run the author's function.
    pub(crate) fn ask_function(
        &self,
        cx: &mut Context,
        call: Option<CallKey>,
        tool: Option<&str>,
        among: &[Identity],
    ) {
        let SelectionPolicy::By(function) = &cx.config.choose else { return };
        let registered =
            |remote: &Remote| remote.tools.iter().find(|it| Some(it.name().as_str()) == tool).cloned();
        let candidate = |(id, remote): (&Identity, &Remote)| Candidate {
            identity: id.clone(),
            participant: remote.join.participant.clone(),
            tool: registered(remote),
        };
        let selection = Selection {
            key: SelectionKey(call),
            tool: tool.map(str::to_owned),
            candidates: self.ranked(among).into_iter().map(candidate).collect(),
            function: Arc::clone(function),
        };
        cx.output(Output::Select(selection));
    }

    fn ranked(&self, among: &[Identity]) -> Vec<(&Identity, &Remote)> {
        let rank = |id| Some((self.remotes.get(id)?.join.rank, id));
        let known = among.iter().filter_map(rank).collect::<BinaryHeap<_>>().into_sorted_vec();
        known.into_iter().filter_map(|(_, id)| self.remotes.get_key_value(id)).collect()
    }
}

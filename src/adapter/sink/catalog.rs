//! Lists the tools of a room for another system: their names, and which are offered.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    ToolName,
    adapter::filter::Filter,
    tool::model::fitted,
    tools::{ModelTool, NameMap, NameRules, Offer},
};

/// Returns whether a tool is offered. A pattern applies to the tool's own name and to the name that a host sees if no other
/// tool has the same, whatever name it is listed under, so that a second client with the same tool cannot evade it.
fn is_offered(offer: &Offer, filter: &Filter) -> bool {
    let name = offer.tool.name().as_str();
    let with_owner = format!("{}.{name}", offer.owner);
    filter.offers(&[name, &with_owner].map(|name| [name.to_owned(), shown(name)]).concat())
}

/// Returns the name under which a host sees a tool of this name.
fn shown(name: &str) -> String {
    NameMap::new(NameRules::Model, [name]).converted(name).unwrap_or_default().to_owned()
}

/// The tools that a host can call, by the names that it sees.
pub(in crate::adapter) struct Catalog(BTreeMap<String, OwnedTool>);

/// A tool with its owner, and in the form that models accept.
#[derive(Debug)]
pub(in crate::adapter) struct Listed {
    pub(in crate::adapter) offer: Offer,
    pub(in crate::adapter) fitted: ModelTool,
}

impl Listed {
    /// Makes a tool fit. One that no model can call is left out.
    pub(in crate::adapter) fn new(offer: Offer) -> Option<Self> {
        Some(Self { fitted: fitted(&offer)?, offer })
    }
}

pub(in crate::adapter) type OwnedTool = Arc<Listed>;

impl Catalog {
    pub(in crate::adapter) fn new(mut offers: BTreeMap<ToolName, Offer>, filter: &Filter) -> Self {
        offers.retain(|_, offer| is_offered(offer, filter));
        let names = NameMap::new(NameRules::Model, offers.keys().map(ToolName::as_str));
        let named = |(name, offer): (ToolName, Offer)| {
            Some((names.converted(name.as_str())?.to_owned(), Listed::new(offer)?.into()))
        };
        Self(offers.into_iter().filter_map(named).collect())
    }

    pub(in crate::adapter) fn len(&self) -> usize {
        self.0.len()
    }

    pub(in crate::adapter) fn get(&self, name: &str) -> Option<&OwnedTool> {
        self.0.get(name)
    }

    pub(in crate::adapter) fn entries(&self) -> impl Iterator<Item = (&str, &OwnedTool)> {
        self.0.iter().map(|(name, entry)| (name.as_str(), entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tool;

    fn offers(list: &[(&str, &str, &str)]) -> BTreeMap<ToolName, Offer> {
        let offer = |(listed, name, owner): &(&str, &str, &str)| {
            (
                listed.parse().unwrap(),
                Offer::new(Tool::new(name.parse().unwrap(), "what it does"), (*owner).into()),
            )
        };
        list.iter().map(offer).collect()
    }

    fn listed(filter: &Filter, list: &[(&str, &str, &str)]) -> Vec<String> {
        Catalog::new(offers(list), filter).entries().map(|(name, _)| name.to_owned()).collect()
    }

    #[test]
    fn dotted_name_is_listed_with_underscores() {
        let list = [("fs.read", "fs.read", "desk"), ("phone.ring", "ring", "phone")];
        assert_eq!(listed(&Filter::default(), &list), ["fs__read", "phone__ring"]);
    }

    #[test]
    fn denied_tool_stays_denied_under_the_name_with_its_owner() {
        let mut filter = Filter::default();
        filter.deny(["erase".to_owned()]);
        let list = [
            ("erase", "erase", "phone"),
            ("a.erase", "erase", "a"),
            ("b.erase", "erase", "b"),
            ("ring", "ring", "b"),
        ];
        assert_eq!(listed(&filter, &list), ["ring"]);
    }

    #[test]
    fn pattern_selects_names_owners_and_prefixes_and_denial_wins() {
        let list =
            [("fs.read", "fs.read", "desk"), ("fs.erase", "fs.erase", "desk"), ("ring", "ring", "phone")];
        let mut filter = Filter::default();
        filter.allow(["fs.*".to_owned()]);
        assert_eq!(listed(&filter, &list), ["fs__erase", "fs__read"]);
        filter.deny(["desk.fs.erase".to_owned()]);
        assert_eq!(listed(&filter, &list), ["fs__read"]);
        filter.allow(["phone.*".to_owned()]);
        assert_eq!(listed(&filter, &list), ["fs__read", "ring"]);
    }

    #[test]
    fn pattern_applies_to_the_names_that_a_host_sees_too() {
        let list = [
            ("desk.ring", "ring", "desk"),
            ("fs.erase", "fs.erase", "desk"),
            ("fs.read", "fs.read", "desk"),
            ("phone.ring", "ring", "phone"),
        ];
        let mut filter = Filter::default();
        filter.deny(["fs__erase".to_owned()]);
        filter.deny(["phone__ring".to_owned()]);
        assert_eq!(listed(&filter, &list), ["desk__ring", "fs__read"]);
        filter.allow(["fs__*".to_owned()]);
        assert_eq!(listed(&filter, &list), ["fs__read"]);
        // A tool that takes the name does not free the other one.
        let clash = [("fs.erase", "fs.erase", "desk"), ("fs__erase", "fs__erase", "phone")];
        assert!(listed(&filter, &clash).is_empty());
    }
}

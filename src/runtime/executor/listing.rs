//! Lists the tools of all sources, each under a name of its own.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use super::{Offered, catch_panic::catch_panic};
use crate::{
    runtime::{schema::ArgumentCheck, source::AnySource},
    tool::{NameMap, NameRules, RegisterError, SourceHealth, Tool, ToolName},
};

/// A tool whose name another source offers, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Renamed {
    pub(crate) source: String,
    pub(crate) tool: ToolName,
    pub(crate) offered_as: ToolName,
}

/// Lists the tools of the sources, in their order. A tool whose name is taken gets the name of its source before its own.
///
/// `names` are those of each source's last list. A source that is down keeps them, and offers nothing under them: a call
/// that is meant for it must not reach another source. `problem` decides whether an invalid tool is an error or left out;
/// so is one whose source has no name.
pub(super) fn list(
    sources: &[Arc<dyn AnySource>],
    names: &mut [BTreeSet<ToolName>],
    before: &[Offered],
    mut problem: impl FnMut(&Arc<dyn AnySource>, ToolName, RegisterError) -> Result<(), RegisterError>,
) -> Result<(Vec<Offered>, Vec<Renamed>), RegisterError> {
    let (mut offered, mut renamed, mut taken) = (Vec::new(), Vec::new(), HashSet::new());
    for (source, names) in sources.iter().zip(names) {
        let tools = tools_of(source, names);
        let listed: BTreeSet<ToolName> = tools.iter().map(|tool| tool.name().clone()).collect();
        for mut tool in tools {
            let own = tool.name().clone();
            if let Some(name) = free_name(source, &own, &taken)
                && name != own
            {
                let source = source.name().unwrap_or_default();
                renamed.push(Renamed { source, tool: own.clone(), offered_as: name.clone() });
                tool = tool.renamed(name);
            }
            let name = tool.name().clone();
            if name.is_reserved() {
                problem(source, name.clone(), RegisterError::Reserved { name })?;
                continue;
            }
            if !taken.insert(name.clone()) {
                problem(source, name.clone(), RegisterError::Duplicate { name })?;
                continue;
            }
            match check_of(source, &tool, before) {
                Ok(check) => offered.push(Offered { tool, own, source: Arc::clone(source), check }),
                Err(error) => problem(source, name, error)?,
            }
        }
        for own in names.difference(&listed) {
            taken.extend(free_name(source, own, &taken));
        }
    }
    Ok((offered, renamed))
}

/// Returns the tools of a source. If it is up, its names become those of this list; otherwise the list adds to them.
fn tools_of(source: &Arc<dyn AnySource>, names: &mut BTreeSet<ToolName>) -> Vec<Tool> {
    let is_up = || catch_panic(|| source.health() == SourceHealth::Up).unwrap_or(false);
    // It may end, or come back, while its list is read.
    let was_up = is_up();
    let tools = source.list();
    if was_up && is_up() {
        names.clear();
    }
    names.extend(tools.iter().map(|tool| tool.name().clone()));
    tools
}

/// Returns the name under which a tool can be offered: its own, otherwise that with the name of its source before it.
fn free_name(source: &Arc<dyn AnySource>, own: &ToolName, taken: &HashSet<ToolName>) -> Option<ToolName> {
    if !taken.contains(own) {
        return Some(own.clone());
    }
    qualified(&source.name()?, own).filter(|name| !taken.contains(name))
}

/// Returns the name of a source's tool with the source's name before it.
fn qualified(source: &str, tool: &ToolName) -> Option<ToolName> {
    let name = format!("{source}.{tool}");
    NameMap::new(NameRules::Tool, [name.as_str()]).converted(&name)?.parse().ok()
}

/// Returns the validator of a tool. An unchanged definition keeps its own and is not compiled again.
fn check_of(
    source: &Arc<dyn AnySource>,
    tool: &Tool,
    before: &[Offered],
) -> Result<ArgumentCheck, RegisterError> {
    let known = before.iter().find(|known| {
        Arc::ptr_eq(&known.source, source)
            && known.tool.name() == tool.name()
            && known.tool.input_schema() == tool.input_schema()
    });
    match known {
        Some(known) => Ok(known.check.clone()),
        None if source.validates_arguments() => Ok(ArgumentCheck::any_map()),
        None => ArgumentCheck::compile(tool),
    }
}

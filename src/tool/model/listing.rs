//! Lists the tools of a room for a model, and reads its calls.

use std::collections::BTreeMap;

use super::ModelTool;
use crate::{
    tool::{CallError, NameMap, NameRules, NotOffered, Offer, Tool, ToolName},
    transport::Identity,
    value::Value,
};

/// Returns offers by the names under which they are listed. Of several owners of a tool, each has the name `owner.tool`, in
/// the form that names of tools allow; a tool that the local participant offers too has its own name alone.
///
/// With `merges`, owners that describe a tool equally are listed once, under its own name.
pub(crate) fn by_owner(offers: Vec<Offer>, merges: bool) -> BTreeMap<ToolName, Offer> {
    let mut by_tool = BTreeMap::<ToolName, Vec<Offer>>::new();
    for offer in offers {
        by_tool.entry(offer.tool.name().clone()).or_default().push(offer);
    }
    let are_equal =
        |a: &Tool, b: &Tool| a.description() == b.description() && a.input_schema() == b.input_schema();
    let mut tools = BTreeMap::new();
    let mut of_owners = BTreeMap::new();
    for (name, mut offers) in by_tool {
        // A call of a tool that the assistant offers too is never ambiguous.
        let local = offers.iter().position(|offer| offer.is_local);
        let is_one = offers.len() == 1
            || merges && offers.windows(2).all(|pair| are_equal(&pair[0].tool, &pair[1].tool));
        match local {
            Some(at) => _ = tools.insert(name, offers.swap_remove(at)),
            None if is_one => _ = tools.insert(name, offers.swap_remove(0)),
            None => of_owners.extend(offers.into_iter().map(|it| (format!("{}.{name}", it.owner), it))),
        }
    }
    // Identities may be long and contain any character.
    let taken = tools.keys().map(ToString::to_string);
    let names = NameMap::new(NameRules::Tool, taken.chain(of_owners.keys().cloned()));
    for (long, offer) in of_owners {
        let name = names.converted(&long).and_then(|name| name.parse::<ToolName>().ok());
        if let Some(name) = name.filter(|name| !tools.contains_key(name)) {
            tools.insert(name, offer);
        }
    }
    tools
}

/// Returns the names that a model sees of listed tools.
pub(crate) fn model_names(listed: &BTreeMap<ToolName, Offer>) -> NameMap {
    NameMap::new(NameRules::Model, listed.keys().map(ToolName::as_str))
}

/// Makes a tool fit. The log names one that no model can call.
#[cfg(feature = "runtime")]
pub(crate) fn fitted(offer: &Offer) -> Option<ModelTool> {
    let fitted = ModelTool::new(&offer.tool);
    fitted.inspect_err(|why| tracing::warn!(owner = %offer.owner, %why, "a tool is left out")).ok()
}

/// What a model's call means.
#[derive(Debug)]
pub(crate) struct ModelCall {
    pub(crate) tool: String,
    /// The participant that has to run it, if its name says that.
    pub(crate) to: Option<Identity>,
    pub(crate) arguments: Value,
}

impl ModelCall {
    /// Reads a model's call of one of these tools. An unknown name is passed on, for the error that says why it is not
    /// offered.
    ///
    /// # Errors
    /// `UnknownTool` for a prompt that the model invented: it must not prompt a person in the assistant's name. `Arguments` if they
    /// are not [arguments](Value::into_arguments).
    pub(crate) fn read(offers: Vec<Offer>, name: &str, written: Value) -> Result<Self, CallError> {
        let arguments = written.into_arguments().map_err(CallError::Arguments)?;
        let mut listed = by_owner(offers, true);
        let names = model_names(&listed);
        let found = names.original(name).and_then(|name| listed.remove_entry(name));
        match found {
            Some((listed, offer)) => {
                let arguments = match ModelTool::new(&offer.tool) {
                    Ok(fitted) => fitted.arguments(arguments),
                    Err(_) => arguments, // it is not shown, so its keys are its own
                };
                let to = (listed != *offer.tool.name()).then_some(offer.owner);
                Ok(Self { tool: offer.tool.name().to_string(), to, arguments })
            }
            None if ToolName::PROMPTS.contains(&name) => {
                Err(CallError::unknown_tool(name, NotOffered::NotAName))
            }
            None => Ok(Self { tool: name.to_owned(), to: None, arguments }),
        }
    }
}

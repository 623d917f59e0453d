//! Holds the document of the system that a result comes from, and what was cut out of a result.

use std::{borrow::Cow, fmt, sync::Arc};

use super::{
    document::{Found, MAX_POINTER, without},
    fields::Map,
    sized,
};
use crate::value::{Value, write::Write};

/// The most values that are cut out of one document. More of them take the whole document along.
const MAX_CUTS: usize = 256;

/// A text of at least this many bytes is also looked for inside other texts.
pub(super) const MIN_CONTAINED: usize = 16;

/// The most work of looking for texts inside a part, in bytes: their number times the part's size. More of it takes the
/// whole part along.
pub(super) const MAX_SEARCH: usize = 256 * 1024 * 1024;

/// The document of the system that a result comes from, as text, byte for byte. `Debug` shows only its size.
#[derive(Clone, PartialEq)]
pub struct Native {
    system: ToolSystem,
    json: Arc<str>,
}

impl Native {
    /// Creates it from a JSON text, which is kept as it is, whether it is valid or not.
    pub fn new(system: impl Into<ToolSystem>, json: impl Into<Arc<str>>) -> Self {
        Self { system: system.into(), json: json.into() }
    }

    /// Returns the system whose form the document has.
    pub fn system(&self) -> &ToolSystem {
        &self.system
    }

    /// Returns the document as JSON text.
    pub fn json(&self) -> &str {
        &self.json
    }

    pub(super) fn read(native: &Value) -> Option<Self> {
        let system = native.get("system")?.as_str()?.to_owned();
        Some(Self::new(system, native.get("json")?.as_str()?))
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let mut map = Map::default();
        map.key("system").str(self.system.as_str());
        map.key("json").str(&self.json);
        map.append_to(out);
    }

    /// Returns the document without the values at these places and without the texts that hold one of `texts`, and
    /// names what was cut. `None` in place of the document means that all of it was cut.
    pub(super) fn cut(&self, places: &[&str], texts: &[&str]) -> (Option<Self>, Vec<Cut>) {
        let mut pointers = Vec::new();
        let mut is_whole = places.contains(&"") || texts.len().saturating_mul(self.json.len()) > MAX_SEARCH;
        let kept = without(&self.json, 0, |pointer, found| {
            let removes = !is_whole
                && (places.contains(&pointer)
                    || match found {
                        Found::Container => false,
                        Found::Text(text) => texts.iter().any(|it| holds(&text, it)),
                        // It cannot be compared.
                        Found::Broken => !texts.is_empty(),
                    });
            if removes {
                is_whole = pointers.len() == MAX_CUTS || pointer.len() > MAX_POINTER;
                pointers.push(pointer.to_owned());
            }
            removes
        });
        match kept.filter(|_| !is_whole) {
            Some(kept) if places.iter().all(|place| pointers.iter().any(|it| is_in(place, it))) => {
                let cuts = pointers.iter().map(|pointer| Cut::new(Cut::NATIVE, pointer.as_str())).collect();
                (Some(Self { json: kept.into(), ..self.clone() }), cuts)
            }
            _ => (None, vec![Cut::new(Cut::NATIVE, "")]),
        }
    }
}

/// Returns whether a pointer names this value or one inside it.
fn is_in(pointer: &str, value: &str) -> bool {
    pointer.strip_prefix(value).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns whether a text holds what another one says.
pub(super) fn holds(text: &str, said: &str) -> bool {
    !said.is_empty() && (text == said || said.len() >= MIN_CONTAINED && text.contains(said))
}

impl fmt::Debug for Native {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Native").field("system", &self.system).field("json", &sized(&self.json)).finish()
    }
}

/// The system whose form a document has. Unknown systems are passed through unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ToolSystem(Cow<'static, str>);

impl ToolSystem {
    /// The [Model Context Protocol](https://modelcontextprotocol.io): a `CallToolResult`.
    pub const MCP: Self = Self(Cow::Borrowed("mcp"));
    /// IBM watsonx Orchestrate: a `ToolResult`.
    pub const WXO: Self = Self(Cow::Borrowed("wxo"));
    /// The Reactive Agent Protocol: a `tool_result` message.
    pub const RAP: Self = Self(Cow::Borrowed("rap"));
    /// The [Agent Client Protocol](https://agentclientprotocol.com): a tool call with all its updates.
    pub const ACP: Self = Self(Cow::Borrowed("acp"));
    /// agent-air: a `ToolResult`.
    pub const AGENT_AIR: Self = Self(Cow::Borrowed("agent-air"));

    /// Returns the name on the wire.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for ToolSystem {
    fn from(name: &str) -> Self {
        name.to_owned().into()
    }
}

impl From<String> for ToolSystem {
    fn from(name: String) -> Self {
        Self(Cow::Owned(name))
    }
}

impl fmt::Display for ToolSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A value that was cut out of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    part: Cow<'static, str>,
    pointer: Arc<str>,
}

impl Cut {
    /// The part `content`: blocks for the model alone, or beyond the limit.
    pub const CONTENT: &str = "content";
    /// The part `structured`.
    pub const STRUCTURED: &str = "structured";
    /// The part `display`.
    pub const DISPLAY: &str = "display";
    /// The part `widget`.
    pub const WIDGET: &str = "widget";
    /// The native document.
    pub const NATIVE: &str = "native";

    pub(super) fn new(part: &'static str, pointer: impl Into<Arc<str>>) -> Self {
        Self { part: part.into(), pointer: pointer.into() }
    }

    /// Returns the part of the result: one of the constants, or another name from a newer peer.
    pub fn part(&self) -> &str {
        &self.part
    }

    /// Returns the place as a JSON pointer into that part as it was before anything was cut. The empty pointer is the
    /// whole part.
    pub fn pointer(&self) -> &str {
        &self.pointer
    }

    pub(super) fn read(cut: &Value) -> Option<Self> {
        let part = cut.get("part")?.as_str()?.to_owned().into();
        Some(Self { part, pointer: cut.get("pointer")?.as_str()?.into() })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let mut map = Map::default();
        map.key("part").str(&self.part);
        map.key("pointer").str(&self.pointer);
        map.append_to(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(json: &str, places: &[&str], texts: &[&str]) -> (Option<String>, Vec<String>) {
        let (native, cuts) = Native::new(ToolSystem::MCP, json).cut(places, texts);
        let native = native.map(|native| native.json().to_owned());
        (native, cuts.iter().map(|cut| cut.pointer().to_owned()).collect())
    }

    #[test]
    fn places_and_texts_are_cut_out_of_the_document() {
        let json = r#"{"a":[{"t":"one"},{"t":"two"}],"b":"one","c":"it says: a long text indeed"}"#;
        let all = (None, vec![String::new()]);
        let kept = |json: &str, cuts: &[&str]| {
            (Some(json.to_owned()), cuts.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(cut(json, &[], &[]), kept(json, &[]));
        assert_eq!(
            cut(json, &["/a/0"], &["one", "a long text indeed"]),
            kept(r#"{"a":[{"t":"two"}]}"#, &["/a/0", "/b", "/c"])
        );
        let half = r#"{"a":"\ud800 one","b":5}"#;
        assert_eq!(cut(half, &[], &["one"]), kept(r#"{"b":5}"#, &["/a"]));
        // A short text is not looked for inside others.
        assert_eq!(cut(json, &[], &["it says", ""]), kept(json, &[]));
        // A place that does not exist: what should be cut may be anywhere.
        assert_eq!(cut(json, &["/a/2"], &[]), all);
        assert_eq!(cut(json, &["/a/0", "/a"], &[]).1, ["/a"]);
        assert_eq!(cut(json, &[""], &[]), all);
        assert_eq!(cut("{broken", &["/a"], &[]), all);
        assert_eq!(cut("{broken", &[], &["text"]), all);
    }

    #[test]
    fn too_many_cuts_take_the_whole_document() {
        let many = serde_json::json!(vec!["a"; MAX_CUTS + 1]).to_string();
        assert_eq!(cut(&many, &[], &["a"]), (None, vec![String::new()]));
        let fewer = serde_json::json!(vec!["a"; MAX_CUTS]).to_string();
        assert_eq!(cut(&fewer, &[], &["a"]).0.as_deref(), Some("[]"));
    }
}

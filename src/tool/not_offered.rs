//! Why nobody runs a tool that was asked for, and why a participant is not one of the assistant's clients.

use std::fmt;

use crate::transport::{Identity, ROLE_ATTRIBUTE, Role};

/// The most names that one message lists.
pub(crate) const NAMES_SHOWN: usize = 8;

/// The most characters of one name that a message shows. LiveKit allows identities of 256 bytes.
const NAME_SHOWN: usize = 64;

/// Why nobody was asked to run a tool: see [`CallError::UnknownTool`](super::CallError::UnknownTool).
///
/// Nothing ran in any of these cases. Lists hold at most 8 identities.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotOffered {
    /// Everybody who could offer the tool has said what it offers, and this tool is not among it.
    NoSuchTool {
        /// The participant that the call names, if it names one.
        owner: Option<Identity>,
        /// The offered name that is spelled most alike, if one is.
        similar: Option<Box<str>>,
    },
    /// Nobody else is in the room.
    EmptyRoom {
        /// The room's name.
        room: Box<str>,
    },
    /// The participant that the call names is not in the room.
    NotHere {
        /// The participant that the call names.
        owner: Identity,
        /// Participants that are in the room.
        here: Vec<Identity>,
        /// How many more are in the room.
        more: usize,
    },
    /// Participants are in the room that have not said yet what they offer. They may offer this tool.
    NotReady {
        /// Those participants; the one that the call names, if it names one.
        owners: Vec<Identity>,
        /// Whether the call ended before the room had told them of this assistant, which takes LiveKit up to 3 s.
        unannounced: bool,
    },
    /// The participant is in the room, and its tools are not taken.
    NotAdmitted {
        /// The participant.
        client: Identity,
        /// Whether it tried to register this tool.
        offers: bool,
        /// Why its tools are not taken.
        why: NotAdmitted,
    },
    /// The participant that was asked answered that it has no such tool.
    Declined {
        /// The participant that was asked.
        owner: Identity,
    },
    /// The name cannot be a tool's, or is reserved for the protocol.
    NotAName,
    /// The caller is a client. Only an assistant calls tools.
    NotAnAssistant,
}

/// Why an assistant does not take a participant's tools.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotAdmitted {
    /// Its token names no role.
    NoRole {
        /// The participant without a role that is admitted already. Only one is.
        admitted: Option<Identity>,
    },
    /// Its token names another role.
    OtherRole {
        /// That role.
        role: Role,
    },
    /// Its token lets it change its own attributes, so that nothing vouches for its role.
    ChangeableRole,
    /// LiveKit says that it is an agent, an egress, an ingress or a telephone, and its token names no role.
    OtherKind,
}

impl NotOffered {
    /// What a caller of this tool reads; what is known without one, if none is named.
    pub(crate) fn explain(&self, tool: &str) -> String {
        let tool = shown(tool);
        match self {
            Self::NoSuchTool { owner, similar } => {
                let said = match owner {
                    Some(owner) => format!("{} offers no tool named \"{tool}\"", shown(owner.as_str())),
                    None => format!("nobody in the room offers a tool named \"{tool}\""),
                };
                match similar {
                    Some(similar) => format!("{said}; did you mean {}?", shown(similar)),
                    None => said,
                }
            }
            Self::EmptyRoom { room } => {
                let name =
                    if room.is_empty() { "the room".to_owned() } else { format!("room {}", shown(room)) };
                let to_run = if tool.is_empty() { String::new() } else { format!(" to run \"{tool}\"") };
                format!("{name} is empty: nobody is here{to_run}")
            }
            Self::NotHere { owner, here, more } => {
                format!("{} is not here; here: {}", shown(owner.as_str()), list(here, *more))
            }
            Self::NotReady { owners, unannounced } => {
                let who = list(owners, 0);
                let has = if owners.len() == 1 { "is here, but it has" } else { "are here, but they have" };
                let what = match tool.is_empty() {
                    true => "what it offers".to_owned(),
                    false => format!("whether \"{tool}\" is offered"),
                };
                let advice = match unannounced {
                    true => "the room may take 3 s to announce this assistant",
                    false => "wait longer",
                };
                format!("{who} {has} not said yet {what}: {advice}")
            }
            Self::NotAdmitted { client, offers, why } => {
                let name = shown(client.as_str());
                let offers = if *offers { format!(" and offers {tool}") } else { String::new() };
                format!("{name} is here{offers}, but {}", why.explain(&name))
            }
            Self::Declined { owner } => {
                format!("{} answered that it has no tool named \"{tool}\"", shown(owner.as_str()))
            }
            Self::NotAName => format!("\"{tool}\" is not a name that a tool can have"),
            Self::NotAnAssistant => "a client cannot call tools; only an assistant can".to_owned(),
        }
    }
}

impl NotAdmitted {
    /// What is wrong with the token of this participant, and what to do.
    pub(crate) fn explain(&self, client: &str) -> String {
        match self {
            Self::NoRole { admitted: None } => format!(
                "its token names no role: add the attribute {ROLE_ATTRIBUTE}=client, or name it with \
                 .client(\"{client}\")"
            ),
            Self::NoRole { admitted: Some(first) } => format!(
                "its token names no role, and only one such participant is admitted, which is {}: add the \
                 attribute {ROLE_ATTRIBUTE}=client, or name it with .client(\"{client}\")",
                shown(first.as_str())
            ),
            Self::OtherRole { role } => format!(
                "its token names the role {role}: use a token with {ROLE_ATTRIBUTE}=client, or name it with \
                 .client(\"{client}\")"
            ),
            Self::ChangeableRole => format!(
                "its token lets it change its own attributes, so that its role is not believed: take \
                 canUpdateOwnMetadata from the token and add the attribute {ROLE_ATTRIBUTE}=client, or name it with \
                 .client(\"{client}\")"
            ),
            Self::OtherKind => format!(
                "it is not an ordinary participant and its token names no role: add the attribute \
                 {ROLE_ATTRIBUTE}=client, or name it with .client(\"{client}\")"
            ),
        }
    }
}

/// "phone, tv and 3 more".
pub(crate) fn list(names: &[Identity], more: usize) -> String {
    let first = names.iter().take(NAMES_SHOWN).map(|name| shown(name.as_str()));
    let text = first.collect::<Vec<_>>().join(", ");
    match more + names.len().saturating_sub(NAMES_SHOWN) {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

/// A name of somebody else, cut to what a message can show, without control characters.
pub(crate) fn shown(name: &str) -> String {
    let mut text: String = name.chars().take(NAME_SHOWN).flat_map(char::escape_debug).collect();
    if name.chars().nth(NAME_SHOWN).is_some() {
        text.push('…');
    }
    text
}

/// The name among these that is most likely meant by a misspelled one. At most one letter in three may differ.
pub(crate) fn most_alike<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = name.chars().count().div_ceil(3).min(3);
    let alike = known.filter(|other| *other != name).map(|other| (distance(name, other), other));
    alike.filter(|(distance, _)| *distance <= most).min().map(|(_, other)| other)
}

/// How many letters must be added, taken away, replaced or swapped with their neighbor (Damerau and Levenshtein).
fn distance(one: &str, two: &str) -> usize {
    let (one, two): (Vec<char>, Vec<char>) = (one.chars().collect(), two.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=two.len()).collect();
    for (row, letter) in one.iter().enumerate() {
        let mut next = vec![row + 1];
        for (column, other) in two.iter().enumerate() {
            let replaced = last[column] + usize::from(letter != other);
            let mut least = replaced.min(last[column + 1] + 1).min(next[column] + 1);
            let swapped = row > 0 && column > 0 && *letter == two[column - 1] && one[row - 1] == *other;
            if swapped {
                least = least.min(before[column - 1] + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut last, next);
    }
    last[two.len()]
}

impl fmt::Display for NotAdmitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoRole { admitted: None } => "its token names no role",
            Self::NoRole { admitted: Some(_) } => {
                "its token names no role, and another such participant is admitted"
            }
            Self::OtherRole { .. } => "its token names another role",
            Self::ChangeableRole => "its token lets it change its own attributes",
            Self::OtherKind => "it is not an ordinary participant, and its token names no role",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_name_finds_the_name_that_is_meant() {
        let known = || ["count_words", "set_lamp", "get_lamp", "t"].into_iter();
        assert_eq!(most_alike("cuont_words", known()), Some("count_words"));
        assert_eq!(most_alike("countwords", known()), Some("count_words"));
        assert_eq!(most_alike("set_lapm", known()), Some("set_lamp"));
        assert_eq!(most_alike("unlock_door", known()), None);
        assert_eq!(most_alike("", known()), None);
    }

    #[test]
    fn message_lists_at_most_eight_names_and_escapes_them() {
        let here: Vec<_> = (0..20).map(|n| Identity::from(format!("n{n}\u{1b}[31m"))).collect();
        let why = NotOffered::NotHere { owner: "x".repeat(300).into(), here: here[..8].to_vec(), more: 12 };
        let text = why.explain("t");
        assert!(text.ends_with("and 12 more") && text.contains("n7") && !text.contains("n8"), "{text}");
        assert!(!text.contains('\u{1b}') && text.len() < 400, "{text}");
    }
}

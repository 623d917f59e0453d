//! Explains why no participant runs a tool, and why a participant is not one of the assistant's clients.

use std::fmt;

use crate::transport::{Identity, Participant, ROLE_ATTRIBUTE, Role, Unreadable};

/// The most names that one message lists.
pub(crate) const NAMES_SHOWN: usize = 8;

/// The most characters of one name that a message shows. LiveKit allows identities of 256 bytes.
const NAME_SHOWN: usize = 64;

/// Why no participant was asked to run a tool: see [`CallError::UnknownTool`](super::CallError::UnknownTool).
///
/// Nothing ran in any of these cases. Lists contain at most 8 identities.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotOffered {
    /// All participants that could offer the tool have registered, and none of them offers it.
    NoSuchTool {
        /// The participant that the call names, if it names one.
        owner: Option<Identity>,
        /// The most similar name that is offered, if there is one.
        similar: Option<Box<str>>,
    },
    /// The room contains no other participant.
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
    /// Some participants in the room have not registered yet. They may offer this tool.
    NotReady {
        /// Those participants; only the one that the call names, if it names one.
        owners: Vec<Identity>,
        /// Whether the call ended before the room had announced this assistant to them, which takes LiveKit up to 3
        /// s.
        unannounced: bool,
    },
    /// Participants in the room may offer tools, but have not answered this assistant, whose own token gives it no role
    /// that they accept.
    NotAccepted {
        /// Those participants; only the one that the call names, if it names one.
        by: Vec<Identity>,
        /// The local participant, which made the call.
        caller: Identity,
        /// What is wrong with its token.
        why: NotAssistant,
    },
    /// A participant is in the room and may offer tools, but its packets cannot be read: its data is encrypted and that of the
    /// local participant is not, or the other way round, or they have different keys.
    Unreadable {
        /// That participant.
        by: Identity,
        /// Why its packets cannot be read.
        why: Unreadable,
    },
    /// A participant is in the room and may offer tools, but its token does not let it send data.
    MayNotSend {
        /// That participant.
        by: Identity,
    },
    /// The participant is in the room but is not admitted, so that its tools are ignored.
    NotAdmitted {
        /// The participant.
        client: Identity,
        /// Whether it tried to register this tool.
        offers: bool,
        /// Why it is not admitted.
        why: NotAdmitted,
    },
    /// The participant has the tool and does not offer it, for example because it is over a limit.
    LeftOut {
        /// That participant.
        owner: Identity,
        /// Why, as the participant says it, or why this assistant has refused the tool.
        why: Box<str>,
    },
    /// The participant that got the request replied that it has no such tool.
    Declined {
        /// That participant.
        owner: Identity,
    },
    /// The name is not a valid tool name, or is reserved for the protocol.
    NotAName,
    /// The caller is a client. Only an assistant calls tools.
    NotAnAssistant,
}

/// Why an assistant does not admit a participant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotAdmitted {
    /// Its token contains no role.
    NoRole {
        /// The participant without a role that is already admitted. Only one can be.
        admitted: Option<Identity>,
    },
    /// Its token contains another role.
    OtherRole {
        /// That role.
        role: Role,
    },
    /// The role attribute of its token has a value that is none of the roles.
    UnknownRole {
        /// The value.
        value: Box<str>,
    },
    /// Its token lets it change its own attributes, so that its role proves nothing.
    ChangeableRole,
    /// LiveKit reports it as an agent, an egress, an ingress or a telephone participant, and its token contains no
    /// role.
    OtherKind,
}

/// Why a client whose author names no assistant does not accept a participant as one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotAssistant {
    /// Its token contains no role, and its kind is not `AGENT`.
    NoRole,
    /// Its token contains another role, whatever its kind.
    OtherRole {
        /// That role.
        role: Role,
    },
    /// The role attribute of its token has a value that is none of the roles, whatever its kind.
    UnknownRole {
        /// The value.
        value: Box<str>,
    },
    /// Its token lets it change its own attributes, so that its role proves nothing.
    ChangeableRole,
}

impl NotOffered {
    /// Returns the explanation for the caller of this tool; for an empty name, the part that does not depend on a
    /// tool.
    pub(crate) fn explain(&self, tool: &str) -> String {
        let tool = shown(tool);
        match self {
            Self::NoSuchTool { owner, similar } => {
                let said = match owner {
                    Some(owner) => format!("{} offers no tool named \"{tool}\"", shown(owner.as_str())),
                    None => format!("no participant in the room offers a tool named \"{tool}\""),
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
                format!("{name} is empty: there is no participant{to_run}")
            }
            Self::NotHere { owner, here, more } => {
                format!("{} is not in the room; participants: {}", shown(owner.as_str()), list(here, *more))
            }
            Self::NotReady { owners, unannounced } => {
                let who = list(owners, 0);
                let has =
                    if owners.len() == 1 { "is in the room, but has" } else { "are in the room, but have" };
                let advice = match unannounced {
                    true => "the room may take 3 s to announce this assistant",
                    false => "wait longer",
                };
                format!("{who} {has} not registered tools yet: {advice}")
            }
            Self::NotAccepted { by, caller, why } => {
                let (who, caller) = (list(by, 0), shown(caller.as_str()));
                let has = if by.len() == 1 { "has" } else { "have" };
                format!("{who} {has} not accepted {caller}, the assistant: {}", why.explain(&caller))
            }
            Self::Unreadable { by, why } => {
                let (name, has) = (
                    shown(by.as_str()),
                    match why {
                        Unreadable::Encrypted => "encrypts its data, and this assistant has no key",
                        Unreadable::NotEncrypted => "does not encrypt its data, as this assistant does",
                        Unreadable::Undecryptable => {
                            "encrypts its data with a key that this assistant does not have"
                        }
                    },
                );
                format!("{name} may offer {tool}, but {has}: {why}")
            }
            Self::MayNotSend { by } => format!(
                "{} is in the room, but its token does not let it send data: grant canPublishData",
                shown(by.as_str())
            ),
            Self::NotAdmitted { client, offers, why } => {
                let name = shown(client.as_str());
                let offers = if *offers { format!(" and offers {tool}") } else { String::new() };
                format!("{name} is in the room{offers}, but {}", why.explain(&name))
            }
            Self::LeftOut { owner, why } => {
                let why: String = why.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
                format!("{} has \"{tool}\", but it is not offered: {why}", shown(owner.as_str()))
            }
            Self::Declined { owner } => {
                format!("{} replied that it has no tool named \"{tool}\"", shown(owner.as_str()))
            }
            Self::NotAName => format!("\"{tool}\" is not a valid tool name"),
            Self::NotAnAssistant => "a client cannot call tools; only an assistant can".to_owned(),
        }
    }
}

impl NotAdmitted {
    /// Returns what is wrong with the participant's token, and what to do. The text also reaches programs in other languages,
    /// so it names no method.
    pub(crate) fn explain(&self, client: &str) -> String {
        let name = format!("or name {client} as one of the assistant's clients");
        match self {
            Self::NoRole { admitted: None } => {
                format!("its token has no role: add the attribute {ROLE_ATTRIBUTE}=client, {name}")
            }
            Self::NoRole { admitted: Some(first) } => format!(
                "its token has no role, and only one such participant is admitted, which is {}: add the \
                 attribute {ROLE_ATTRIBUTE}=client, {name}",
                shown(first.as_str())
            ),
            Self::OtherRole { role } => {
                format!("its token has the role {role}: use a token with {ROLE_ATTRIBUTE}=client, {name}")
            }
            Self::UnknownRole { value } => format!(
                "its token has the role \"{}\", which is none of client, assistant and observer: use a token with \
                 {ROLE_ATTRIBUTE}=client, {name}",
                shown(value)
            ),
            Self::ChangeableRole => format!(
                "its token lets it change its own attributes, so that its role proves nothing: remove \
                 canUpdateOwnMetadata from the token and add the attribute {ROLE_ATTRIBUTE}=client, {name}"
            ),
            Self::OtherKind => format!(
                "it is not an ordinary participant and its token has no role: add the attribute \
                 {ROLE_ATTRIBUTE}=client, {name}"
            ),
        }
    }
}

impl NotAssistant {
    /// Returns the reason why this participant is not accepted, or `None` if it is.
    pub(crate) fn of(who: &Participant) -> Option<Self> {
        if who.is_eligible_assistant() {
            return None;
        }
        Some(match who.stated_role() {
            Some(Ok(role)) => Self::OtherRole { role },
            Some(Err(value)) => Self::UnknownRole { value: value.into() },
            None if who.attribute(ROLE_ATTRIBUTE).is_some() => Self::ChangeableRole,
            None => Self::NoRole,
        })
    }

    /// Returns what is wrong with the participant's token, and what to do.
    pub(crate) fn explain(&self, assistant: &str) -> String {
        let remedy = format!(
            "use a token with {ROLE_ATTRIBUTE}=assistant, or of the kind agent without a role, or name {assistant} as the \
             client's assistant"
        );
        match self {
            Self::ChangeableRole => {
                format!("{self}: remove canUpdateOwnMetadata from the token, or {remedy}")
            }
            _ => format!("{self}: {remedy}"),
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

/// Says that a client is bound to another assistant, or to none, and what to do.
#[cfg(any(feature = "runtime", feature = "vocabulary"))]
pub(crate) fn not_bound(client: &Identity) -> String {
    format!(
        "{} is bound to another assistant, or to none because there are several; close the others, or name this assistant \
         in the client's option `assistant`",
        shown(client.as_str())
    )
}

/// Returns a foreign name, shortened for a message and without control characters.
pub(crate) fn shown(name: &str) -> String {
    let mut text: String = name.chars().take(NAME_SHOWN).flat_map(char::escape_debug).collect();
    if name.chars().nth(NAME_SHOWN).is_some() {
        text.push('…');
    }
    text
}

/// Returns the known name that is most similar to a misspelled one. At most one letter in three may differ.
pub(crate) fn most_alike<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = name.chars().count().div_ceil(3).min(3);
    let alike = known.filter(|other| *other != name).map(|other| (distance(name, other), other));
    alike.filter(|(distance, _)| *distance <= most).min().map(|(_, other)| other)
}

/// Returns how many letters must be added, removed, replaced or swapped with their neighbor (Damerau and
/// Levenshtein).
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
            Self::NoRole { admitted: None } => "its token has no role",
            Self::NoRole { admitted: Some(_) } => {
                "its token has no role, and another such participant is admitted"
            }
            Self::OtherRole { .. } => "its token has another role",
            Self::UnknownRole { .. } => "the role in its token is not a role",
            Self::ChangeableRole => "its token lets it change its own attributes",
            Self::OtherKind => "it is not an ordinary participant, and its token has no role",
        })
    }
}

impl fmt::Display for NotAssistant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRole => f.write_str("its token has no role"),
            Self::OtherRole { role } => write!(f, "its token has the role {role}"),
            Self::UnknownRole { value } => {
                let value = shown(value);
                write!(
                    f,
                    "its token has the role \"{value}\", which is none of client, assistant and observer"
                )
            }
            Self::ChangeableRole => {
                f.write_str("its token lets it change its own attributes, so that its role proves nothing")
            }
        }
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

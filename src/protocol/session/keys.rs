//! Defines the keys of what one session holds open.

use crate::tool::JobKey;

/// Identifies a call of the local participant within one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallKey(pub(super) u64);

/// Identifies a conversation turn within one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TurnKey(pub(super) u64);

/// Identifies a [`Selection`](super::Selection) within one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectionKey(pub(super) Option<CallKey>);

/// Gives a key a form as a number, for drivers in other languages.
macro_rules! numbered {
    ($name:ident) => {
        impl $name {
            /// Returns the key as a number, for a driver that cannot hold the type.
            pub fn number(self) -> u64 {
                self.0
            }

            /// Returns the key of this number. A number that no key has is that of an unknown key.
            pub fn from_number(number: u64) -> Self {
                Self(number)
            }
        }
    };
}

numbered!(CallKey);
numbered!(JobKey);
numbered!(TurnKey);

impl SelectionKey {
    /// Returns the key as a number, for a driver that cannot hold the type.
    pub fn number(self) -> u64 {
        self.0.map_or(0, CallKey::number) // calls count from 1
    }

    /// Returns the key of this number.
    pub fn from_number(number: u64) -> Self {
        Self((number > 0).then_some(CallKey(number)))
    }
}

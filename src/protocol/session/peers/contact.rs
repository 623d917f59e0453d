//! Tracks the state of the handshake with a peer.

/// The peer's side of the handshake, under one pair of sids.
///
/// A peer is *plain* if it does not use toolbridge's handshake: it has sent no Configuration, or one that shows no
/// instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Contact {
    /// The peer has sent neither a Configuration nor a plain request.
    #[default]
    Unheard,
    /// The peer is plain and has sent no Configuration.
    Plain,
    /// The peer's Configuration has arrived.
    Configured,
    /// The peer's Configuration has arrived and shows no instance.
    PlainConfigured,
    /// One side has said goodbye, or the assistant reported an error that it cannot recover from.
    Left {
        /// The peer's Configuration had arrived.
        configured: bool,
        /// The peer was plain.
        plain: bool,
    },
}

/// A signal that changes the state of a [`Contact`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// The peer's Configuration arrived.
    Configuration {
        /// Whether it shows an instance.
        instance: bool,
    },
    /// A Configuration arrived that is answered once and has no further effect.
    Declined,
    /// The peer sent a frame without a Configuration, or did not answer the local one in time.
    Plain,
    /// The peer's Configuration is void: another instance sent it, or the local sid has changed.
    Void,
    /// One side said goodbye.
    Goodbye,
}

impl Contact {
    /// Returns the state after this signal. `Left` is final: the peer's next join has its own `Contact`.
    pub(crate) fn after(self, signal: Signal) -> Self {
        let (configured, plain) = (self.is_configured(), self.is_plain());
        match (self, signal) {
            // The peer said goodbye in a join that goes on. That the local participant rejoins takes nothing
            // back.
            (Self::Left { plain, .. }, Signal::Void) => Self::Left { configured: false, plain },
            (Self::Left { .. }, _) => self,
            (_, Signal::Goodbye) => Self::Left { configured, plain },
            (_, Signal::Configuration { instance: true }) => Self::Configured,
            (_, Signal::Configuration { instance: false }) => Self::PlainConfigured,
            (Self::Plain | Self::PlainConfigured, Signal::Declined) => Self::PlainConfigured,
            (Self::Unheard | Self::Configured, Signal::Declined) => Self::Configured,
            (Self::Unheard | Self::Plain, Signal::Plain) => Self::Plain,
            (Self::Configured | Self::PlainConfigured, Signal::Plain) => Self::PlainConfigured,
            (Self::Unheard | Self::Configured, Signal::Void) => Self::Unheard,
            // A plain peer knows nothing of pairs of sids, so it sends no other Configuration after a rejoin
            // of this side.
            (Self::Plain | Self::PlainConfigured, Signal::Void) => Self::Plain,
        }
    }

    /// Returns whether the peer's Configuration has arrived.
    pub(crate) fn is_configured(self) -> bool {
        matches!(self, Self::Configured | Self::PlainConfigured | Self::Left { configured: true, .. })
    }

    /// Returns whether the peer does not use toolbridge's handshake.
    pub(crate) fn is_plain(self) -> bool {
        matches!(self, Self::Plain | Self::PlainConfigured | Self::Left { plain: true, .. })
    }

    /// Returns whether no more frames are expected under this pair of sids.
    pub(crate) fn has_left(self) -> bool {
        matches!(self, Self::Left { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_decides_whether_a_peer_is_plain() {
        for before in [Contact::Unheard, Contact::Plain, Contact::Configured, Contact::PlainConfigured] {
            assert_eq!(before.after(Signal::Configuration { instance: true }), Contact::Configured);
            assert_eq!(before.after(Signal::Configuration { instance: false }), Contact::PlainConfigured);
        }
    }

    #[test]
    fn void_configuration_keeps_plain_peer_plain() {
        assert_eq!(Contact::Configured.after(Signal::Void), Contact::Unheard);
        assert_eq!(Contact::PlainConfigured.after(Signal::Void), Contact::Plain);
    }

    #[test]
    fn nothing_follows_a_goodbye() {
        let left = Contact::Configured.after(Signal::Goodbye);
        assert_eq!(left, Contact::Left { configured: true, plain: false });
        for signal in
            [Signal::Configuration { instance: true }, Signal::Plain, Signal::Declined, Signal::Goodbye]
        {
            assert_eq!(left.after(signal), left);
        }
        assert!(left.after(Signal::Void).has_left());
    }
}

//! Carries the packets: the peer connection, its sockets, relays, and the cryptography of DTLS.

pub(crate) mod crypto;
pub(crate) mod ice_tcp;
pub(crate) mod peer_connection;
pub(crate) mod sockets;
pub(crate) mod turn;
pub(crate) mod udp;

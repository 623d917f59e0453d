//! Reads and writes STUN messages as TURN uses them ([RFC 8489](https://www.rfc-editor.org/rfc/rfc8489),
//! section 5). All bounds are checked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hmac::{Hmac, KeyInit, Mac};
use md5::{Digest, Md5};
use sha1::Sha1;

use crate::net::words::one_line;

/// The size of the header: type, length, cookie, transaction id.
pub(super) const HEAD: usize = 20;
/// The longest message that is read, in bytes: a datagram with its wrapping.
pub(super) const MAX_MESSAGE: usize = 4096;
/// The most attributes of one message that are read. Servers send about ten.
const MAX_ATTRIBUTES: usize = 64;

const COOKIE: u32 = 0x2112_A442;
/// The size of an integrity attribute with its header.
const INTEGRITY: usize = 4 + 20;

/// The purpose of a request, or the content of an indication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Method {
    Binding = 0x001,
    Allocate = 0x003,
    Refresh = 0x004,
    Send = 0x006,
    Data = 0x007,
    CreatePermission = 0x008,
    ChannelBind = 0x009,
}

impl Method {
    fn of(kind: u16) -> Option<Self> {
        use Method::{Allocate, Binding, ChannelBind, CreatePermission, Data, Refresh, Send};
        [Binding, Allocate, Refresh, Send, Data, CreatePermission, ChannelBind]
            .into_iter()
            .find(|method| *method as u16 == kind & !CLASS)
    }
}

/// The two bits of a type that encode the class. All supported methods are below the first.
const CLASS: u16 = 0x0110;

/// The class of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Class {
    Request = 0x0000,
    Indication = 0x0010,
    Success = 0x0100,
    Error = 0x0110,
}

/// The numbers of attributes.
pub(super) mod attribute {
    pub(in super::super) const USERNAME: u16 = 0x0006;
    pub(in super::super) const MESSAGE_INTEGRITY: u16 = 0x0008;
    pub(in super::super) const ERROR_CODE: u16 = 0x0009;
    pub(in super::super) const CHANNEL_NUMBER: u16 = 0x000C;
    pub(in super::super) const LIFETIME: u16 = 0x000D;
    pub(in super::super) const XOR_PEER_ADDRESS: u16 = 0x0012;
    pub(in super::super) const DATA: u16 = 0x0013;
    pub(in super::super) const REALM: u16 = 0x0014;
    pub(in super::super) const NONCE: u16 = 0x0015;
    pub(in super::super) const XOR_RELAYED_ADDRESS: u16 = 0x0016;
    pub(in super::super) const REQUESTED_ADDRESS_FAMILY: u16 = 0x0017;
    pub(in super::super) const REQUESTED_TRANSPORT: u16 = 0x0019;
    pub(in super::super) const XOR_MAPPED_ADDRESS: u16 = 0x0020;
    pub(in super::super) const ADDITIONAL_ADDRESS_FAMILY: u16 = 0x8000;
}

/// The id of a request, which its response repeats.
pub(super) type Transaction = [u8; 12];

/// A received message whose bounds were checked, and nothing else.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'a> {
    bytes: &'a [u8],
    pub(super) class: Class,
    pub(super) method: Method,
}

impl<'a> Message<'a> {
    /// Reads a message of a supported method; `None` for anything else.
    pub(super) fn read(bytes: &'a [u8]) -> Option<Self> {
        if bytes.len() > MAX_MESSAGE || length(bytes)? != bytes.len() {
            return None;
        }
        let kind = u16::from_be_bytes(array(bytes, 0)?);
        let class = match kind & CLASS {
            0x0000 => Class::Request,
            0x0010 => Class::Indication,
            0x0100 => Class::Success,
            _ => Class::Error,
        };
        let message = Self { bytes, class, method: Method::of(kind)? };
        // A message whose attributes do not end at its end was truncated or forged.
        (message.attributes().map(|(_, start, value)| start + padded(value.len())).last())
            .is_none_or(|end| end == bytes.len())
            .then_some(message)
    }

    pub(super) fn transaction(&self) -> Transaction {
        array(self.bytes, 8).unwrap_or_default()
    }

    /// Returns the first attribute of this type that the integrity covers, if the message has one.
    pub(super) fn get(&self, name: u16) -> Option<&'a [u8]> {
        self.all(name).next()
    }

    /// Returns all attributes of this type before the integrity; later ones are ignored.
    pub(super) fn all(&self, name: u16) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.attributes()
            .take_while(|(name, ..)| *name != attribute::MESSAGE_INTEGRITY)
            .filter(move |(it, ..)| *it == name)
            .map(|(.., value)| value)
    }

    /// Returns a text of at most this many bytes.
    pub(super) fn text(&self, name: u16, limit: usize) -> Option<&'a str> {
        let text = std::str::from_utf8(self.get(name)?).ok()?;
        (!text.is_empty() && text.len() <= limit).then_some(text)
    }

    pub(super) fn number(&self, name: u16) -> Option<u32> {
        let value = self.get(name)?;
        (value.len() == 4).then(|| array(value, 0).map(u32::from_be_bytes))?
    }

    pub(super) fn address(&self, name: u16) -> Option<SocketAddr> {
        self.addresses(name).next()
    }

    pub(super) fn addresses(&self, name: u16) -> impl Iterator<Item = SocketAddr> + use<'a> {
        let transaction = self.transaction();
        self.all(name).filter_map(move |value| read_address(value, transaction))
    }

    /// Returns the error code and the reason phrase.
    pub(super) fn error(&self) -> Option<(u16, String)> {
        /// The longest reason phrase, in bytes.
        const WORDS: usize = 64;
        let value = self.get(attribute::ERROR_CODE)?;
        let [_, _, class, number] = array(value, 0)?;
        // The number is at most 99 by the RFC. A larger one would make a code of another class.
        let code = u16::from(class & 7) * 100 + u16::from(number.min(99));
        Some((code, one_line(&String::from_utf8_lossy(&value[4..]), WORDS)))
    }

    pub(super) fn has_integrity(&self) -> bool {
        self.attributes().any(|(name, ..)| name == attribute::MESSAGE_INTEGRITY)
    }

    /// Returns whether the message was signed with this key.
    pub(super) fn is_signed_with(&self, key: &Key) -> bool {
        let Some((_, start, value)) =
            self.attributes().find(|(name, ..)| *name == attribute::MESSAGE_INTEGRITY)
        else {
            return false;
        };
        let covered = start - 4;
        // The length is computed as if the message ended with its integrity.
        let Some(mac) = key.mac(&self.bytes[..covered], covered - HEAD + INTEGRITY) else { return false };
        mac.verify_slice(value).is_ok()
    }

    /// Returns the attributes: type, position of the value, and the value.
    fn attributes(&self) -> impl Iterator<Item = (u16, usize, &'a [u8])> + use<'a> {
        let (bytes, mut at) = (self.bytes, HEAD);
        std::iter::from_fn(move || {
            let name = u16::from_be_bytes(array(bytes, at)?);
            let length = usize::from(u16::from_be_bytes(array(bytes, at + 2)?));
            let start = at + 4;
            let value = bytes.get(start..start + length)?;
            at = start + padded(length);
            Some((name, start, value))
        })
        // A message with more of them does not end where its last attribute does, and `read` rejects it.
        .take(MAX_ATTRIBUTES)
    }
}

/// Returns the length of a message with this start; `None` if it is not a message.
pub(super) fn length(bytes: &[u8]) -> Option<usize> {
    let length = usize::from(u16::from_be_bytes(array(bytes, 2)?));
    // The first two bits tell STUN from channel data on the same connection (RFC 8656, section 12).
    let is_stun = bytes[0] < 0x40 && array(bytes, 4) == Some(COOKIE.to_be_bytes()) && length % 4 == 0;
    (is_stun && bytes.len() >= HEAD).then_some(HEAD + length)
}

/// A message that is being written.
pub(super) struct Writer {
    bytes: Vec<u8>,
    transaction: Transaction,
}

impl Writer {
    pub(super) fn new(class: Class, method: Method, transaction: Transaction) -> Self {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend_from_slice(&(class as u16 | method as u16).to_be_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&COOKIE.to_be_bytes());
        bytes.extend_from_slice(&transaction);
        Self { bytes, transaction }
    }

    /// Appends an attribute. One that is too long is omitted; all attributes written here are far shorter.
    pub(super) fn put(mut self, name: u16, value: &[u8]) -> Self {
        let Ok(length) = u16::try_from(value.len()) else { return self };
        self.bytes.extend_from_slice(&name.to_be_bytes());
        self.bytes.extend_from_slice(&length.to_be_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(HEAD + padded(self.bytes.len() - HEAD), 0);
        self
    }

    pub(super) fn address(self, name: u16, address: SocketAddr) -> Self {
        let value = write_address(address, self.transaction);
        self.put(name, &value)
    }

    /// Returns the message, signed with a key.
    pub(super) fn sign(self, key: &Key) -> Vec<u8> {
        let covered = self.bytes.len();
        let mac = key.mac(&self.bytes, covered - HEAD + INTEGRITY);
        let mac = mac.map(|mac| mac.finalize().into_bytes()).unwrap_or_default();
        self.put(attribute::MESSAGE_INTEGRITY, &mac).finish()
    }

    /// Returns the message.
    pub(super) fn finish(mut self) -> Vec<u8> {
        let length = u16::try_from(self.bytes.len() - HEAD).unwrap_or(u16::MAX);
        self.bytes[2..4].copy_from_slice(&length.to_be_bytes());
        self.bytes
    }
}

/// The key of a user in a realm, from the long-term credential mechanism (section 9.2.2).
#[derive(Clone)]
pub(super) struct Key([u8; 16]);

impl Key {
    pub(super) fn new(username: &str, realm: &str, password: &str) -> Self {
        let mut digest = Md5::new();
        for part in [username, ":", realm, ":", password] {
            digest.update(part);
        }
        Self(digest.finalize().into())
    }

    /// Returns the MAC of a message, computed with this length in its header.
    fn mac(&self, message: &[u8], length: usize) -> Option<Hmac<Sha1>> {
        let mut mac = Hmac::<Sha1>::new_from_slice(&self.0).ok()?;
        mac.update(message.get(..2)?);
        mac.update(&u16::try_from(length).ok()?.to_be_bytes());
        mac.update(message.get(4..)?);
        Some(mac)
    }
}

/// Reads an XOR-mapped address, which hides it from translators that rewrite addresses: [RFC 8489, 14.2].
fn read_address(value: &[u8], transaction: Transaction) -> Option<SocketAddr> {
    let mask = mask(transaction);
    let port = u16::from_be_bytes(array(value, 2)?) ^ (COOKIE >> 16) as u16;
    let ip = match (value.get(1)?, value.len()) {
        (1, 8) => {
            let masked: [u8; 4] = array(value, 4)?;
            IpAddr::V4(Ipv4Addr::from(std::array::from_fn(|at| masked[at] ^ mask[at])))
        }
        (2, 20) => {
            let masked: [u8; 16] = array(value, 4)?;
            IpAddr::V6(Ipv6Addr::from(std::array::from_fn(|at| masked[at] ^ mask[at])))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

fn write_address(address: SocketAddr, transaction: Transaction) -> Vec<u8> {
    let mask = mask(transaction);
    let (family, ip) = match address.ip() {
        IpAddr::V4(ip) => (1, ip.octets().to_vec()),
        IpAddr::V6(ip) => (2, ip.octets().to_vec()),
    };
    let port = (address.port() ^ (COOKIE >> 16) as u16).to_be_bytes();
    let ip = ip.into_iter().zip(mask).map(|(byte, mask)| byte ^ mask);
    [0, family].into_iter().chain(port).chain(ip).collect()
}

fn mask(transaction: Transaction) -> [u8; 16] {
    let mut mask = [0; 16];
    mask[..4].copy_from_slice(&COOKIE.to_be_bytes());
    mask[4..].copy_from_slice(&transaction);
    mask
}

/// Rounds up to a multiple of four, where attributes, and frames on a stream, end.
pub(super) fn padded(length: usize) -> usize {
    length.next_multiple_of(4)
}

pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::{attribute::*, *};

    const ID: Transaction = [7; 12];

    /// The response of [RFC 5769](https://www.rfc-editor.org/rfc/rfc5769), 2.4: long-term authentication.
    const RFC_5769: &[u8] =
        b"\x00\x01\x00\x60\x21\x12\xa4\x42\x78\xad\x34\x33\xc6\xad\x72\xc0\x29\xda\x41\x2e\
        \x00\x06\x00\x12\xe3\x83\x9e\xe3\x83\x88\xe3\x83\xaa\xe3\x83\x83\xe3\x82\xaf\xe3\x82\xb9\x00\x00\
        \x00\x15\x00\x1c\x66\x2f\x2f\x34\x39\x39\x6b\x39\x35\x34\x64\x36\x4f\x4c\x33\x34\x6f\x4c\x39\x46\
        \x53\x54\x76\x79\x36\x34\x73\x41\x00\x14\x00\x0b\x65\x78\x61\x6d\x70\x6c\x65\x2e\x6f\x72\x67\x00\
        \x00\x08\x00\x14\xf6\x70\x24\x65\x6d\xd6\x4a\x3e\x02\xb8\xe0\x71\x2e\x85\xc9\xa2\x8c\xa8\x96\x66";

    #[test]
    fn published_sample_is_read_and_its_integrity_holds() {
        let message = Message::read(RFC_5769).unwrap();
        assert_eq!((message.class, message.method), (Class::Request, Method::Binding));
        let user = message.text(USERNAME, 100).unwrap();
        assert_eq!((user, message.text(REALM, 100)), ("マトリックス", Some("example.org")));
        assert!(message.is_signed_with(&Key::new(user, "example.org", "TheMatrIX")));
        assert!(!message.is_signed_with(&Key::new(user, "example.org", "another")));
        for at in 0..RFC_5769.len() {
            let mut changed = RFC_5769.to_vec();
            changed[at] ^= 1;
            let key = Key::new("マトリックス", "example.org", "TheMatrIX");
            // Padding has no meaning, but is signed like everything else.
            assert!(!Message::read(&changed).is_some_and(|it| it.is_signed_with(&key)), "{at}");
        }
    }

    #[test]
    fn written_message_reads_back() {
        let key = Key::new("user", "realm", "pass");
        for address in ["192.0.2.1:4000", "[2001:db8::1]:65535"] {
            let address = address.parse().unwrap();
            let bytes = Writer::new(Class::Success, Method::Allocate, ID)
                .address(XOR_RELAYED_ADDRESS, address)
                .put(LIFETIME, &600_u32.to_be_bytes())
                .put(NONCE, b"abcde")
                .sign(&key);
            let message = Message::read(&bytes).unwrap();
            assert_eq!((message.class, message.method), (Class::Success, Method::Allocate));
            assert_eq!(message.transaction(), ID);
            assert_eq!(message.address(XOR_RELAYED_ADDRESS), Some(address));
            assert_eq!(message.number(LIFETIME), Some(600));
            assert_eq!(message.text(NONCE, 5), Some("abcde"));
            assert_eq!(message.text(NONCE, 4), None, "over its limit");
            assert!(message.is_signed_with(&key));
        }
    }

    #[test]
    fn every_prefix_and_every_changed_byte_is_read_or_refused() {
        let whole = Writer::new(Class::Error, Method::Refresh, ID)
            .put(ERROR_CODE, b"\0\0\x04\x26Stale\nNonce")
            .address(XOR_PEER_ADDRESS, "192.0.2.1:1".parse().unwrap())
            .finish();
        assert_eq!(Message::read(&whole).unwrap().error(), Some((438, "Stale Nonce".into())));
        for length in 0..whole.len() {
            assert!(Message::read(&whole[..length]).is_none(), "{length}");
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 0x3f, 0x40, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[at] = byte;
                if let Some(message) = Message::read(&changed) {
                    let _ = (message.error(), message.address(XOR_PEER_ADDRESS), message.number(LIFETIME));
                    assert!(!message.is_signed_with(&Key::new("", "", "")));
                }
            }
        }
    }

    #[test]
    fn attributes_after_the_integrity_are_ignored() {
        let key = Key::new("user", "realm", "pass");
        let mut bytes = Writer::new(Class::Success, Method::Refresh, ID).sign(&key);
        bytes.extend_from_slice(b"\0\x0d\0\x04\0\0\0\x01");
        bytes[3] += 8;
        let message = Message::read(&bytes).unwrap();
        assert!(message.is_signed_with(&key));
        assert_eq!(message.number(LIFETIME), None);
    }
}

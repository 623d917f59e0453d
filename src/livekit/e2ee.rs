//! Encrypts data packets end to end, as LiveKit's SDKs do. See [`E2eeKey`], and [`E2eeKeys`] for keys that change.
//!
//! The server still sees the sender, the receivers, the number and the size of each packet. The encryption binds none of
//! them to the content: the server can deliver a packet twice, and in the name of another participant.

mod keys;

use std::{fmt, num::NonZeroU32, sync::Arc};

use bytes::Bytes;
use livekit_protocol::{
    data_stream::{Header, Trailer},
    encryption,
};
use prost::Message;
use ring::{
    aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hkdf, pbkdf2,
    rand::{SecureRandom, SystemRandom},
};

pub use keys::E2eeKeys;

use super::wire::{
    packet::{Chunk, DataPacket, EncryptedPacket, UserPacket, Value},
    rpc::{RpcAck, RpcRequest, RpcResponse},
};

/// The size of a key, in bytes.
const KEY: usize = 16;

/// What a ratchet makes of a secret, in bytes.
const RATCHETED: usize = 32;

/// The salt of a key that has no other one, as in LiveKit's SDKs.
const SALT: &[u8] = b"LKFrameEncryptionKey";

/// How often the secret is hashed to make a key: 100,000 times.
const ROUNDS: NonZeroU32 = NonZeroU32::MIN.saturating_add(99_999);

/// The last place of a key ring.
const LAST_INDEX: u8 = 15;

/// The size of the constant that tells apart the keys that are derived from one secret by HKDF: zeros, in LiveKit's SDKs.
const INFO: usize = 128;

/// By how much a packet is larger when it is encrypted, in bytes, at most: 28 for the initialization vector and the tag,
/// and 16 for keys and lengths.
pub(crate) const OVERHEAD: usize = 44;

/// The key of a room whose data packets are encrypted end to end.
///
/// All participants have the same secret: with LiveKit's SDKs, the shared key of the room option `encryption`. An app that
/// uses the older option `e2ee` encrypts its media only.
///
/// ```
/// use toolbridge::livekit::{ConnectOptions, E2eeKey};
///
/// let options = ConnectOptions::new().e2ee_key(E2eeKey::new("correct horse battery staple"));
/// assert!(!format!("{options:?}").contains("horse"));
/// ```
#[derive(Clone)]
pub struct E2eeKey {
    secret: Arc<Secret>,
    key: Arc<LessSafeKey>,
    /// The place in the key rings of the others, if it is known.
    index: Option<u8>,
}

/// What keys are derived from.
struct Secret {
    bytes: Vec<u8>,
    salt: Vec<u8>,
    by: Derivation,
}

#[derive(Clone, Copy)]
enum Derivation {
    Pbkdf2,
    Hkdf,
}

/// A place that no key ring has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key index {index} is above 15, the last place of a key ring")]
#[non_exhaustive]
pub struct InvalidKeyIndex {
    /// The index.
    pub index: u8,
}

impl E2eeKey {
    /// Derives the key from a secret that the participants share, by PBKDF2 with LiveKit's salt and number of rounds. This
    /// takes tens of milliseconds.
    ///
    /// Use another secret for each room: a key is safe for 2³² packets of all participants together.
    #[must_use]
    pub fn new(secret: impl AsRef<[u8]>) -> Self {
        Self::of(secret.as_ref().to_vec(), SALT.to_vec(), Derivation::Pbkdf2)
    }

    /// Derives the key from random bytes that the participants share, by HKDF: as `livekit-client` does with a key that is an
    /// `ArrayBuffer` and not a text. A text is not random enough for it.
    #[must_use]
    pub fn from_random_bytes(secret: impl AsRef<[u8]>) -> Self {
        Self::of(secret.as_ref().to_vec(), SALT.to_vec(), Derivation::Hkdf)
    }

    fn of(bytes: Vec<u8>, salt: Vec<u8>, by: Derivation) -> Self {
        let secret = Secret { bytes, salt, by };
        #[expect(clippy::expect_used, reason = "the key has the length that the algorithm needs")]
        let key = UnboundKey::new(&AES_128_GCM, &secret.derived::<KEY>()).expect("a key of 16 bytes");
        Self { secret: Arc::new(secret), key: Arc::new(LessSafeKey::new(key)), index: None }
    }

    /// Derives the key with another salt: the SDKs' option `ratchetSalt`. Default: `LKFrameEncryptionKey`, as theirs.
    #[must_use]
    pub fn salt(self, salt: impl AsRef<[u8]>) -> Self {
        let Secret { bytes, by, .. } = &*self.secret;
        Self { index: self.index, ..Self::of(bytes.clone(), salt.as_ref().to_vec(), *by) }
    }

    /// Sets the place of the key in the key rings of the other participants, 0 to 15: packets of other places are not read
    /// with it. Default: packets of every place are, and the place for sending is the one that others last used, at first 0.
    ///
    /// # Errors
    /// The index is above 15: the rings of LiveKit's SDKs have 16 places.
    pub fn index(mut self, index: u8) -> Result<Self, InvalidKeyIndex> {
        if index > LAST_INDEX {
            return Err(InvalidKeyIndex { index });
        }
        self.index = Some(index);
        Ok(self)
    }

    /// Derives the next key from this one, as the ratchets of LiveKit's SDKs do. Who has only the next one cannot read what
    /// this one has encrypted. This takes tens of milliseconds.
    #[must_use]
    pub fn ratcheted(&self) -> Self {
        let Secret { salt, by, .. } = &*self.secret;
        let next = self.secret.derived::<RATCHETED>().to_vec();
        Self { index: self.index, ..Self::of(next, salt.clone(), *by) }
    }

    /// Encrypts the content of a packet. A packet that is encrypted already or has no content stays as it is.
    ///
    /// # Errors
    /// The packet cannot be encrypted. It has lost its content.
    fn seal(&self, packet: &mut DataPacket, index: u8) -> Result<(), NotSealed> {
        let mut iv = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut iv).map_err(|_| NotSealed)?;
        self.seal_with(packet, index, iv)
    }

    fn seal_with(&self, packet: &mut DataPacket, index: u8, iv: [u8; NONCE_LEN]) -> Result<(), NotSealed> {
        let content = match packet.value.take() {
            Some(Value::User(it)) => Content::User(it),
            Some(Value::RpcRequest(it)) => Content::RpcRequest(it),
            Some(Value::RpcAck(it)) => Content::RpcAck(it),
            Some(Value::RpcResponse(it)) => Content::RpcResponse(it),
            Some(Value::StreamHeader(it)) => Content::StreamHeader(it),
            Some(Value::StreamChunk(it)) => Content::StreamChunk(it),
            Some(Value::StreamTrailer(it)) => Content::StreamTrailer(it),
            unchanged @ (Some(Value::Encrypted(_)) | None) => {
                packet.value = unchanged;
                return Ok(());
            }
        };
        let payload = Payload { content: Some(content) };
        let mut bytes = Vec::with_capacity(payload.encoded_len() + AES_128_GCM.tag_len());
        payload.encode(&mut bytes).map_err(|_| NotSealed)?;
        let nonce = Nonce::assume_unique_for_key(iv);
        self.key.seal_in_place_append_tag(nonce, Aad::empty(), &mut bytes).map_err(|_| NotSealed)?;
        packet.value = Some(Value::Encrypted(EncryptedPacket {
            encryption_type: encryption::Type::Gcm.into(),
            iv: Bytes::copy_from_slice(&iv),
            key_index: index.into(),
            encrypted_value: bytes.into(),
        }));
        Ok(())
    }

    /// Decrypts the content of a packet. Returns `None` if it is of a kind that toolbridge does not read.
    ///
    /// Its type is not looked at: LiveKit's SDK for browsers does not set it.
    fn open(&self, sealed: &EncryptedPacket) -> Result<Option<Value>, Fault> {
        let iv = sealed.iv[..].try_into().map_err(|_| Fault::Iv)?;
        let mut bytes = sealed.encrypted_value.to_vec();
        let opened = self.key.open_in_place(Nonce::assume_unique_for_key(iv), Aad::empty(), &mut bytes);
        let length = opened.map_err(|_| Fault::Tag)?.len();
        bytes.truncate(length);
        let payload = Payload::decode(Bytes::from(bytes)).map_err(|_| Fault::Content)?;
        Ok(payload.content.map(|content| match content {
            Content::User(it) => Value::User(it),
            Content::RpcRequest(it) => Value::RpcRequest(it),
            Content::RpcAck(it) => Value::RpcAck(it),
            Content::RpcResponse(it) => Value::RpcResponse(it),
            Content::StreamHeader(it) => Value::StreamHeader(it),
            Content::StreamChunk(it) => Value::StreamChunk(it),
            Content::StreamTrailer(it) => Value::StreamTrailer(it),
        }))
    }
}

impl fmt::Debug for E2eeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("E2eeKey").field("index", &self.index).finish_non_exhaustive()
    }
}

/// LiveKit's `EncryptedPacketPayload`, as far as toolbridge uses it.
#[derive(Clone, PartialEq, Message)]
struct Payload {
    #[prost(oneof = "Content", tags = "1, 4, 5, 6, 7, 8, 9")]
    content: Option<Content>,
}

/// The content of a [`Payload`]. Other kinds are read as `None`.
#[derive(Clone, PartialEq, prost::Oneof)]
enum Content {
    #[prost(message, tag = "1")]
    User(UserPacket),
    #[prost(message, tag = "4")]
    RpcRequest(RpcRequest),
    #[prost(message, tag = "5")]
    RpcAck(RpcAck),
    #[prost(message, tag = "6")]
    RpcResponse(RpcResponse),
    #[prost(message, tag = "7")]
    StreamHeader(Header),
    #[prost(message, tag = "8")]
    StreamChunk(Chunk),
    #[prost(message, tag = "9")]
    StreamTrailer(Trailer),
}

/// A packet could not be encrypted.
#[derive(Debug, thiserror::Error)]
#[error("the packet could not be encrypted: the system has no randomness")]
pub(crate) struct NotSealed;

/// The reason why an encrypted packet cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The initialization vector has another length than 12 bytes.
    Iv,
    /// The sender uses the key at this place of its key ring, and the local key has another one.
    Index(u32),
    /// The sender has another key, or the packet was changed on its way.
    Tag,
    /// The content is not a packet.
    Content,
}

impl Secret {
    fn derived<const N: usize>(&self) -> [u8; N] {
        let mut derived = [0; N];
        match self.by {
            Derivation::Pbkdf2 => {
                pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, ROUNDS, &self.salt, &self.bytes, &mut derived);
            }
            Derivation::Hkdf => {
                let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, &self.salt).extract(&self.bytes);
                let info: [&[u8]; 1] = [&[0; INFO]];
                let expanded = secret.expand(&info, Length(N)).and_then(|key| key.fill(&mut derived));
                #[expect(clippy::expect_used, reason = "the length is far below HKDF's limit")]
                let () = expanded.expect("a short key");
            }
        }
        derived
    }
}

/// The length of what HKDF derives.
struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use livekit_protocol::{EncryptedPacketPayload, data_packet, encrypted_packet_payload};

    use super::*;
    use crate::livekit::wire::packet::{encoded_size, outgoing};
    use crate::transport::{Packet, RpcMessage, RpcRequest, Sid};

    const SECRET: &str = "correct horse";

    /// What Python's `cryptography` 49 and the Web Crypto of Node 20 make of [`SECRET`], of the initialization vector 01 to
    /// 0c and of a packet of a user with the payload "hello" and the topic "toolbridge".
    const PLAIN: &str = "0a13120568656c6c6f220a746f6f6c627269646765";
    const SEALED: &str = "fb3bba5d3b3c1a568779e00eec3a071c2906e945314f22b846fa93c90250afed16a89697af";

    fn hex(text: &str) -> Vec<u8> {
        let digits = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    fn iv() -> [u8; NONCE_LEN] {
        std::array::from_fn(|at| at as u8 + 1)
    }

    fn hello() -> DataPacket {
        outgoing(Packet::new(["phone".into()], "hello"), &Sid::from("PA_1"))
    }

    fn chunk(size: usize) -> DataPacket {
        let chunk = Chunk { stream_id: "s".into(), content: vec![7; size].into(), ..Default::default() };
        DataPacket { value: Some(Value::StreamChunk(chunk)), ..Default::default() }
    }

    fn sealed(packet: &DataPacket) -> EncryptedPacket {
        match &packet.value {
            Some(Value::Encrypted(sealed)) => sealed.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn packet_is_encrypted_as_other_implementations_do() {
        let mut packet = hello();
        E2eeKey::new(SECRET).seal_with(&mut packet, 0, iv()).unwrap();
        let packet = sealed(&packet);
        assert_eq!((&packet.encrypted_value[..], &packet.iv[..]), (&hex(SEALED)[..], &iv()[..]));
        assert_eq!((packet.encryption_type, packet.key_index), (encryption::Type::Gcm as i32, 0));
        // The plaintext is what `livekit_protocol` writes.
        let value = match hello().value {
            Some(Value::User(user)) => livekit_protocol::UserPacket {
                payload: user.payload.to_vec(),
                topic: user.topic,
                ..Default::default()
            },
            other => panic!("{other:?}"),
        };
        let value = Some(encrypted_packet_payload::Value::User(value));
        assert_eq!(EncryptedPacketPayload { value }.encode_to_vec(), hex(PLAIN));
    }

    #[test]
    fn keys_of_texts_and_bytes_are_those_of_other_implementations() {
        let zeros = |key: &LessSafeKey| {
            let (mut bytes, nonce) = (vec![0; 16], Nonce::assume_unique_for_key([0; NONCE_LEN]));
            key.seal_in_place_append_tag(nonce, Aad::empty(), &mut bytes).unwrap();
            bytes
        };
        let bytes: [u8; 32] = std::array::from_fn(|at| at as u8);
        for (secret, derived) in [
            (SECRET.as_bytes(), "834e90983b671b2fa23af805580e4b43"),
            ("Schlüssel".as_bytes(), "0e7582c6d4fc258e5cee7d198e8fe1f0"),
            (&bytes[..], "74884f8739e616fffc831a2172ff98b7"),
        ] {
            let derived = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &hex(derived)).unwrap());
            assert_eq!(zeros(&E2eeKey::new(secret).key), zeros(&derived));
        }
        // From Python's hashlib and hmac.
        let (text, random) = (E2eeKey::new(SECRET), E2eeKey::from_random_bytes(SECRET));
        for (key, derived) in [
            (text.ratcheted(), "349832909d8c8c4fc80e2155d92189f6"),
            (text.salt("a salt of the app"), "a3362c2ee9cb98519bc5da80a387f22d"),
            (random.ratcheted(), "de8d7e296d2e4e049eb603875416e175"),
            (random.salt("a salt of the app"), "37db86007f44423b5bfe6f1b9f63849f"),
        ] {
            let derived = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &hex(derived)).unwrap());
            assert_eq!(zeros(&key.key), zeros(&derived));
        }
    }

    #[test]
    fn packet_of_a_browser_without_its_type_is_read() {
        let message =
            "220570686f6e658001078a010450415f31920135120c0102030405060708090a0b0c2225".to_owned() + SEALED;
        let packet = DataPacket::decode(&hex(&message)[..]).unwrap();
        assert_eq!((&*packet.participant_identity, packet.sequence), ("phone", 7));
        assert_eq!(sealed(&packet).encryption_type, 0);
        assert_eq!(E2eeKey::new(SECRET).open(&sealed(&packet)), Ok(hello().value));
    }

    #[test]
    fn every_kind_of_content_returns_and_two_packets_differ() {
        let key = E2eeKey::new(SECRET);
        let header = Header { stream_id: "s".into(), total_length: Some(3), ..Default::default() };
        let trailer = Trailer { stream_id: "s".into(), ..Default::default() };
        let streams = [Value::StreamHeader(header), Value::StreamTrailer(trailer)];
        let streams = streams.map(|value| DataPacket { value: Some(value), ..Default::default() });
        for plain in [hello(), chunk(15_000)].into_iter().chain(streams) {
            let (mut one, mut two) = (plain.clone(), plain.clone());
            key.seal(&mut one, 0).unwrap();
            key.seal(&mut two, 0).unwrap();
            assert_ne!(sealed(&one).iv, sealed(&two).iv);
            assert_ne!(sealed(&one).encrypted_value, sealed(&two).encrypted_value);
            assert_eq!(one.destination_identities, plain.destination_identities, "the server needs them");
            assert_eq!(key.open(&sealed(&one)), Ok(plain.value));
            let before = one.clone();
            key.seal(&mut one, 0).unwrap();
            assert_eq!(one, before, "it is encrypted already");
        }
        let mut empty = DataPacket::default();
        key.seal(&mut empty, 0).unwrap();
        assert_eq!(empty, DataPacket::default());
    }

    #[test]
    fn changed_packet_is_refused() {
        let key = E2eeKey::new(SECRET);
        let mut packet = hello();
        key.seal(&mut packet, 0).unwrap();
        let whole = sealed(&packet);
        for bit in 0..8 * whole.encrypted_value.len() {
            let mut bytes = whole.encrypted_value.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let changed = EncryptedPacket { encrypted_value: bytes.into(), ..whole.clone() };
            assert_eq!(key.open(&changed), Err(Fault::Tag), "bit {bit}");
        }
        for length in 0..whole.encrypted_value.len() {
            let cut =
                EncryptedPacket { encrypted_value: whole.encrypted_value.slice(..length), ..whole.clone() };
            assert_eq!(key.open(&cut), Err(Fault::Tag), "{length} bytes");
        }
        for iv in [vec![], vec![0; 11], vec![0; 13]] {
            assert_eq!(key.open(&EncryptedPacket { iv: iv.into(), ..whole.clone() }), Err(Fault::Iv));
        }
        let other = EncryptedPacket { iv: vec![0; NONCE_LEN].into(), ..whole.clone() };
        assert_eq!(key.open(&other), Err(Fault::Tag));
        assert_eq!(E2eeKey::new("another").open(&whole), Err(Fault::Tag));
    }

    #[test]
    fn authentic_content_of_another_kind_is_nothing_and_no_packet_is_a_fault() {
        let key = E2eeKey::new(SECRET);
        let sealing = |mut bytes: Vec<u8>| {
            let nonce = Nonce::assume_unique_for_key(iv());
            key.key.seal_in_place_append_tag(nonce, Aad::empty(), &mut bytes).unwrap();
            EncryptedPacket {
                iv: Bytes::copy_from_slice(&iv()),
                encrypted_value: bytes.into(),
                ..Default::default()
            }
        };
        let chat = livekit_protocol::ChatMessage::default();
        let value = Some(encrypted_packet_payload::Value::ChatMessage(chat));
        assert_eq!(key.open(&sealing(EncryptedPacketPayload { value }.encode_to_vec())), Ok(None));
        assert_eq!(key.open(&sealing(Vec::new())), Ok(None));
        assert_eq!(key.open(&sealing(vec![0xff; 9])), Err(Fault::Content));
    }

    #[test]
    fn messages_of_rpc_are_encrypted_as_livekit_protocol_reads_them() {
        let key = E2eeKey::new(SECRET);
        let message = RpcMessage::Request(RpcRequest::new("r1", "getBattery", "{}", 5_000));
        let mut packet = outgoing(Packet::rpc("phone".into(), message), &Sid::from("PA_1"));
        let plain = packet.value.clone();
        key.seal(&mut packet, 0).unwrap();
        let sealed = sealed(&packet);
        let mut bytes = sealed.encrypted_value.to_vec();
        let nonce = Nonce::assume_unique_for_key(sealed.iv[..].try_into().unwrap());
        let opened = key.key.open_in_place(nonce, Aad::empty(), &mut bytes).unwrap();
        let payload = EncryptedPacketPayload::decode(&*opened).unwrap();
        let Some(encrypted_packet_payload::Value::RpcRequest(read)) = payload.value else {
            panic!("no request")
        };
        assert_eq!((&*read.id, &*read.method, &*read.payload), ("r1", "getBattery", "{}"));
        assert_eq!(key.open(&sealed), Ok(plain));
    }

    #[test]
    fn encrypted_packet_is_what_livekit_protocol_makes_of_it() {
        let key = E2eeKey::new(SECRET);
        for index in [0, 15] {
            for plain in [0, 1, 90, 110, 127, 128, 15_000, 60_000].map(chunk).into_iter().chain([hello()]) {
                let mut packet = plain.clone();
                key.seal(&mut packet, index).unwrap();
                let more = encoded_size(&packet) - encoded_size(&plain);
                assert!(more <= OVERHEAD, "{more}");
                let bytes = packet.encode_to_vec();
                let read = livekit_protocol::DataPacket::decode(&bytes[..]).unwrap();
                assert_eq!(read.encode_to_vec(), bytes);
                let Some(data_packet::Value::EncryptedPacket(it)) = read.value else {
                    panic!("not encrypted")
                };
                assert_eq!((it.encryption_type(), it.key_index), (encryption::Type::Gcm, index.into()));
            }
        }
    }

    #[test]
    fn index_beyond_the_ring_is_an_error() {
        for index in [16, 200, 255] {
            let error = E2eeKey::new(SECRET).index(index).unwrap_err();
            assert_eq!(
                (error, error.to_string().contains(&index.to_string())),
                (InvalidKeyIndex { index }, true)
            );
        }
    }

    /// The expected bytes are from WebCrypto (Node), which `livekit-client` uses.
    #[test]
    fn key_of_random_bytes_is_that_of_livekit_client() {
        let hex: String = E2eeKey::from_random_bytes(SECRET)
            .secret
            .derived::<KEY>()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(hex, "b743ff98f111bb64a53ee50636813e79");
        let (one, other) = (E2eeKey::from_random_bytes(SECRET), E2eeKey::new(SECRET));
        let mut packet = hello();
        one.seal(&mut packet, 0).unwrap();
        assert!(one.open(&sealed(&packet)).is_ok());
        assert_eq!(other.open(&sealed(&packet)), Err(Fault::Tag));
    }

    #[test]
    fn debug_of_a_key_shows_its_index_alone() {
        assert_eq!(format!("{:?}", E2eeKey::new(SECRET).index(3).unwrap()), "E2eeKey { index: Some(3), .. }");
    }
}

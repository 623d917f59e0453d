//! Holds the keys of a room, which may change while the local participant is in it.

use std::{
    fmt,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};

use tokio::time::Instant;

use super::{E2eeKey, Fault, LAST_INDEX, NotSealed};
use crate::livekit::wire::packet::{DataPacket, EncryptedPacket, Value};

/// How long packets are still read with a key that another one has replaced: those that are on their way, and those of
/// participants that change theirs a little later.
const GRACE: Duration = Duration::from_secs(10);

/// The least time between two packets for which steps of a ratchet are tried: anybody in the room can send one that no step reads.
const TRIAL: Duration = Duration::from_secs(2);

/// The keys of a room that is encrypted end to end: a ring with up to 16 places, as that of LiveKit's SDKs. Clones are the
/// same ring, so that it can change while a participant is in the room.
///
/// A packet is read with the key at the place that it names, and sent with the key that was [set](Self::set) last.
///
/// ```
/// use toolbridge::livekit::{ConnectOptions, E2eeKey, E2eeKeys};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let keys = E2eeKeys::new(E2eeKey::new("the first secret").index(0)?);
/// let options = ConnectOptions::new().e2ee_keys(&keys);
/// // A member has left: all others change to another key, at the next place.
/// keys.set(E2eeKey::new("the second secret").index(1)?);
/// # drop(options);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct E2eeKeys(Arc<RwLock<Ring>>);

#[derive(Default)]
struct Ring {
    /// By place; after these the key that has no place of its own.
    places: [Option<Place>; ANY + 1],
    /// The place of the key for sending.
    current: usize,
    /// The place that others last used for a key that has none.
    heard: u8,
    /// How many steps of the ratchet are tried for a packet that no key reads.
    window: u8,
    /// When that was last done.
    tried: Option<Instant>,
}

/// Where the key is that has no place of its own.
const ANY: usize = LAST_INDEX as usize + 1;

struct Place {
    key: E2eeKey,
    /// The key that it has replaced, and when.
    before: Option<(E2eeKey, Instant)>,
}

impl E2eeKeys {
    /// Creates a ring with one key, which is used for sending.
    #[must_use]
    pub fn new(key: E2eeKey) -> Self {
        let keys = Self(Arc::default());
        keys.set(key);
        keys
    }

    /// Puts a key at its [place](E2eeKey::index), and sends with it from now on. Packets that the key before it has encrypted
    /// are read for 10 s more.
    pub fn set(&self, key: E2eeKey) {
        let mut ring = self.write();
        ring.current = ring.put(key);
    }

    /// Puts a key at its [place](E2eeKey::index), for reading. Sending does not change, unless a key for sending was there.
    pub fn add(&self, key: E2eeKey) {
        self.write().put(key);
    }

    /// Replaces the key for sending with the [next one](E2eeKey::ratcheted) of its ratchet. This takes tens of milliseconds.
    pub fn ratchet(&self) {
        let key = self.read().current().map(|place| place.key.clone());
        if let Some(key) = key {
            self.set(key.ratcheted());
        }
    }

    /// Follows others that ratchet their key: for a packet that cannot be read, up to so many next keys are tried, and the one that
    /// reads it replaces the key at its place. At most one packet in 2 s is tried so, since each step takes tens of milliseconds,
    /// during which the connection waits. As `ratchetWindowSize` of LiveKit's SDKs. Default: 0, none is tried.
    #[must_use]
    pub fn ratchet_window(self, steps: u8) -> Self {
        self.write().window = steps;
        self
    }

    /// Encrypts the content of a packet with the key for sending.
    ///
    /// # Errors
    /// The packet cannot be encrypted. It has lost its content.
    pub(crate) fn seal(&self, packet: &mut DataPacket) -> Result<(), NotSealed> {
        let ring = self.read();
        let key = &ring.current().ok_or(NotSealed)?.key;
        key.seal(packet, key.index.unwrap_or(ring.heard))
    }

    /// Decrypts the content of a packet with the key at the place that it names, or with the key that has no place.
    pub(crate) fn open(&self, sealed: &EncryptedPacket) -> Result<Option<Value>, Fault> {
        let (opened, heard) = self.read().open(sealed);
        if let Some(heard) = heard {
            self.write().heard = heard;
        }
        if opened == Err(Fault::Tag) { self.follow(sealed).unwrap_or(opened) } else { opened }
    }

    /// Tries the next keys of the one that should have read a packet.
    fn follow(&self, sealed: &EncryptedPacket) -> Option<Result<Option<Value>, Fault>> {
        let (mut key, window) = {
            let mut ring = self.write();
            if ring.window == 0 || ring.tried.is_some_and(|at| at.elapsed() < TRIAL) {
                return None;
            }
            ring.tried = Some(Instant::now());
            (ring.reading(sealed).next()?.0.key.clone(), ring.window)
        };
        for _ in 0..window {
            key = key.ratcheted();
            let opened = key.open(sealed);
            if opened != Err(Fault::Tag) {
                let mut ring = self.write();
                ring.put(key);
                ring.tried = None;
                return Some(opened);
            }
        }
        None
    }

    fn read(&self) -> RwLockReadGuard<'_, Ring> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Ring> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn current(&self) -> Option<&Place> {
        self.places[self.current].as_ref()
    }

    fn put(&mut self, key: E2eeKey) -> usize {
        let at = key.index.map_or(ANY, usize::from);
        let before = self.places[at].take().map(|place| (place.key, Instant::now()));
        self.places[at] = Some(Place { key, before });
        at
    }

    /// The places whose keys may read a packet: the one that it names, and that of the key which has none (true).
    fn reading(&self, sealed: &EncryptedPacket) -> impl Iterator<Item = (&Place, bool)> {
        let named = usize::try_from(sealed.key_index).ok().and_then(|index| self.places[..ANY].get(index));
        let named = named.and_then(Option::as_ref).map(|place| (place, false));
        named.into_iter().chain(self.places[ANY].as_ref().map(|place| (place, true)))
    }

    /// Also returns the place to note, if a key without one has read the packet of another place than before.
    fn open(&self, sealed: &EncryptedPacket) -> (Result<Option<Value>, Fault>, Option<u8>) {
        let mut fault = Fault::Index(sealed.key_index);
        for (Place { key, before }, is_any) in self.reading(sealed) {
            let before = before.as_ref().filter(|(_, at)| at.elapsed() < GRACE).map(|(key, _)| key);
            for key in std::iter::once(key).chain(before) {
                match key.open(sealed) {
                    Err(other) => fault = other,
                    Ok(value) => {
                        let index = u8::try_from(sealed.key_index).ok();
                        let is_new = |index: &u8| is_any && *index <= LAST_INDEX && *index != self.heard;
                        return (Ok(value), index.filter(is_new));
                    }
                }
            }
        }
        (Err(fault), None)
    }
}

impl From<E2eeKey> for E2eeKeys {
    fn from(key: E2eeKey) -> Self {
        Self::new(key)
    }
}

impl fmt::Debug for E2eeKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ring = self.read();
        let places = ring.places.iter().flatten().map(|place| place.key.index);
        f.debug_struct("E2eeKeys").field("places", &places.collect::<Vec<_>>()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::{
        livekit::wire::packet::outgoing,
        transport::{Packet, Sid},
    };

    fn key(secret: &str) -> E2eeKey {
        E2eeKey::new(secret)
    }

    fn hello() -> DataPacket {
        outgoing(Packet::new(["phone".into()], "hello"), &Sid::from("PA_1"))
    }

    fn sent(keys: &E2eeKeys) -> EncryptedPacket {
        let mut packet = hello();
        keys.seal(&mut packet).unwrap();
        let Some(Value::Encrypted(sealed)) = packet.value else { panic!("it is not encrypted") };
        sealed
    }

    fn is_read(by: &E2eeKeys, sealed: &EncryptedPacket) -> bool {
        by.open(sealed) == Ok(hello().value)
    }

    #[tokio::test(start_paused = true)]
    async fn packet_is_read_with_the_key_at_its_place_and_sent_with_the_last_one() {
        let ours = E2eeKeys::new(key("one").index(0).unwrap());
        let theirs = E2eeKeys::new(key("one").index(0).unwrap());
        assert!(is_read(&theirs, &sent(&ours)));
        let first = sent(&ours);
        theirs.set(key("two").index(1).unwrap());
        assert_eq!((sent(&theirs).key_index, ours.open(&sent(&theirs))), (1, Err(Fault::Index(1))));
        ours.add(key("two").index(1).unwrap());
        assert!(is_read(&ours, &sent(&theirs)) && is_read(&theirs, &first));
        assert_eq!(sent(&ours).key_index, 0, "the key for sending is another one");
        ours.set(key("two").index(1).unwrap());
        assert_eq!(sent(&ours).key_index, 1);
        assert_eq!(ours.open(&sent(&E2eeKeys::new(key("three").index(1).unwrap()))), Err(Fault::Tag));
    }

    #[tokio::test(start_paused = true)]
    async fn key_without_a_place_is_read_at_every_one_and_sent_with_that_of_the_others() {
        let ours = E2eeKeys::new(key("one"));
        assert_eq!(sent(&ours).key_index, 0);
        let theirs = E2eeKeys::new(key("one").index(7).unwrap());
        assert!(is_read(&ours, &sent(&theirs)));
        assert!(sent(&ours).key_index == 7 && is_read(&theirs, &sent(&ours)));
        let forged = E2eeKeys::new(key("other").index(3).unwrap());
        assert_eq!((ours.open(&sent(&forged)), sent(&ours).key_index), (Err(Fault::Tag), 7));
        let mut beyond = sent(&theirs);
        beyond.key_index = 16;
        assert!(is_read(&ours, &beyond) && sent(&ours).key_index == 7, "no ring has that place");
        beyond.key_index = u32::MAX;
        assert!(is_read(&ours, &beyond));
    }

    #[tokio::test(start_paused = true)]
    async fn replaced_key_is_read_for_10_s() {
        for index in [None, Some(4)] {
            let at = |key: E2eeKey| index.into_iter().fold(key, |key, index| key.index(index).unwrap());
            let (ours, before) = (E2eeKeys::new(at(key("one"))), E2eeKeys::new(at(key("one"))));
            let packet = sent(&before);
            ours.set(at(key("two")));
            advance(GRACE - Duration::from_millis(1)).await;
            assert!(is_read(&ours, &packet));
            assert_eq!(before.open(&sent(&ours)), Err(Fault::Tag), "it is sent with the new one");
            advance(Duration::from_millis(1)).await;
            assert_eq!(ours.open(&packet), Err(Fault::Tag));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn ratchet_is_followed_within_its_window_and_tried_once_in_2_s() {
        let (theirs, deaf) = (E2eeKeys::new(key("one")), E2eeKeys::new(key("one")));
        let ours = E2eeKeys::new(key("one")).ratchet_window(2);
        theirs.ratchet();
        theirs.ratchet();
        assert_eq!(deaf.open(&sent(&theirs)), Err(Fault::Tag));
        let forged = sent(&E2eeKeys::new(key("other")));
        assert_eq!(ours.open(&forged), Err(Fault::Tag));
        assert_eq!(ours.open(&sent(&theirs)), Err(Fault::Tag), "another packet was just tried");
        advance(TRIAL).await;
        assert!(is_read(&ours, &sent(&theirs)));
        assert!(is_read(&theirs, &sent(&ours)), "it is sent with the same one");
        for _ in 0..3 {
            theirs.ratchet();
        }
        assert_eq!(ours.open(&sent(&theirs)), Err(Fault::Tag), "three steps are beyond the window");
    }
}

//! A thread that joins a LiveKit room by toolbridge's own transport, and carries packets between the room and a driver in
//! another thread.
//!
//! The driver passes packets by commands and takes events from a list. A byte on a socket tells it that there are some, so
//! that an event loop can wait for them. The thread calls nothing of Python: it needs no lock of the interpreter, which other
//! threads may hold for long, and which nobody gets any more when the interpreter exits.

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    io::{Read, Write},
    mem,
    os::unix::net::UnixStream,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use tokio::{
    sync::{Notify, mpsc},
    task::{AbortHandle, JoinSet},
};
use toolbridge::{
    CloseReason, ConnectionState, Identity,
    livekit::{ConnectError, ConnectOptions},
    session::SendFailure,
    transport::{Lane, Packet, STREAM_TOPIC, SendError, Sid, StreamPart, Transport, TransportEvent},
};
use toolbridge_face::{Input, Panicked};

/// The largest number and size (in bytes) of the events that wait for the driver. Above them the transport is not read,
/// and slows the senders down.
const EVENTS: usize = 4_096;
const EVENT_BYTES: usize = 4 * 1024 * 1024;

/// The largest number and size (in bytes) of the packets that wait to be sent: those of `src/transport/send_queue.rs`, where
/// the transport would make them wait. A single packet may exceed the size, and small packets that overtake have a reserve.
const PACKETS: usize = 4_096;
const PACKET_BYTES: usize = 32 * 1024 * 1024;
const RESERVE: usize = 1_024;
const RESERVE_BYTES: usize = 1024 * 1024;

/// If no more than this waits on the reliable lane, in bytes, the core sends what it held back for it (`RELIABLE_WAIT` of
/// `delivery/lane.rs`).
const SHORT_BACKLOG: usize = 600;

/// How long the last packets are waited for when the room is left.
const FLUSH: Duration = Duration::from_secs(1);

/// How often the tasks of a room that was left are looked at.
const FINISH_STEP: Duration = Duration::from_millis(1);

/// The address space of the thread's stack, in bytes.
const STACK: usize = 2 * 1024 * 1024;

/// What the driver is told.
#[derive(Debug)]
pub(crate) enum Event {
    /// The room was joined.
    Joined {
        /// The room's name.
        room: String,
        /// The input `rejoined` with the participants. The core does not get it.
        participants: Input,
    },
    /// The room was not joined, for this reason.
    Failed(String),
    /// An input for the core.
    Input(Input),
    /// Packets were sent: less waits on the reliable lane, or this large packet no more.
    Sent(Option<u64>),
    /// The thread has ended, by this panic if there is a text. Nothing follows.
    Ended(Option<String>),
}

/// A packet that is to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) key: u64,
    pub(crate) to: Vec<String>,
    pub(crate) is_broadcast: bool,
    pub(crate) topic: String,
    pub(crate) is_reliable: bool,
    pub(crate) overtakes: bool,
    /// The id of its stream, if it is a large one.
    pub(crate) stream: Option<String>,
    pub(crate) bytes: Vec<u8>,
}

/// The driver's end.
#[derive(Debug)]
pub(crate) struct RoomThread {
    commands: mpsc::UnboundedSender<Command>,
    shared: Arc<Shared>,
    /// Has a byte if events wait.
    awakened: UnixStream,
}

#[derive(Debug)]
enum Command {
    /// The packet was queued in the join with this sid.
    Send(Outgoing, Sid),
    Cancel(u64),
    Leave,
    Panic,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Events were taken from a full list.
    has_room: Notify,
    ended: Condvar,
    wake: UnixStream,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Event>,
    event_bytes: usize,
    /// The join that the driver knows.
    sid: Option<Sid>,
    /// The packets that are not sent, by their keys.
    pending: HashMap<u64, Pending>,
    pending_bytes: usize,
    /// Those of the reliable lane.
    backlog: usize,
    has_ended: bool,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    bytes: usize,
    is_reliable: bool,
    is_large: bool,
}

impl RoomThread {
    /// Starts a thread that joins a room.
    ///
    /// # Errors
    /// The system has no socket or thread left.
    pub(crate) fn start(url: String, token: String, options: ConnectOptions) -> std::io::Result<Self> {
        Self::start_with(move || async move { options.join(&url, &token).await.map_err(text_of) })
    }

    fn start_with<T: Transport, F: Future<Output = Result<T, String>>>(
        join: impl FnOnce() -> F + Send + 'static,
    ) -> std::io::Result<Self> {
        let (wake, awakened) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        awakened.set_nonblocking(true)?;
        let (state, has_room, ended) = Default::default();
        let shared = Arc::new(Shared { state, has_room, ended, wake });
        let (commands, received) = mpsc::unbounded_channel();
        let of_thread = Arc::clone(&shared);
        thread::Builder::new().name("toolbridge".into()).stack_size(STACK).spawn(move || {
            let body = || run(&of_thread, received, join);
            let panicked = match catch_unwind(AssertUnwindSafe(body)) {
                Ok(result) => result.err().map(|error| error.to_string()),
                Err(payload) => Some(Panicked::new(&*payload).to_string()),
            };
            of_thread.end(panicked);
        })?;
        Ok(Self { commands, shared, awakened })
    }

    /// The socket that is readable if events wait.
    pub(crate) fn awakened(&self) -> &UnixStream {
        &self.awakened
    }

    /// Takes the events.
    pub(crate) fn take(&self) -> VecDeque<Event> {
        let mut state = self.shared.lock();
        // A byte that comes later wakes the driver once more than needed.
        let _ = (&self.awakened).read(&mut [0; 16]);
        let was_full = state.is_full();
        state.event_bytes = 0;
        let events = mem::take(&mut state.events);
        for event in &events {
            if let Event::Joined { participants: Input::Rejoined { local, .. }, .. }
            | Event::Input(Input::Rejoined { local, .. }) = event
            {
                state.sid = Some(Sid::from(&*local.sid));
            }
        }
        drop(state);
        if was_full {
            self.shared.has_room.notify_one();
        }
        events
    }

    /// Queues a packet. Returns false if too many wait.
    pub(crate) fn send(&self, packet: Outgoing) -> bool {
        let mut state = self.shared.lock();
        let pending = Pending {
            bytes: packet.bytes.len(),
            is_reliable: packet.is_reliable,
            is_large: packet.stream.is_some(),
        };
        let (most, most_bytes) = match packet.overtakes && !pending.is_large {
            true => (PACKETS + RESERVE, PACKET_BYTES + RESERVE_BYTES),
            false => (PACKETS, PACKET_BYTES),
        };
        let exceeds_bytes = !state.pending.is_empty() && state.pending_bytes + pending.bytes > most_bytes;
        let Some(sid) = state.sid.clone() else { return false };
        if state.pending.len() >= most || exceeds_bytes || state.has_ended {
            return false;
        }
        state.pending.insert(packet.key, pending);
        state.pending_bytes += pending.bytes;
        state.backlog += if pending.is_reliable { pending.bytes } else { 0 };
        drop(state);
        // If the thread ends just now, the driver is told that it has ended.
        let _ = self.commands.send(Command::Send(packet, sid));
        true
    }

    /// Drops a packet, without a report.
    pub(crate) fn cancel(&self, key: u64) {
        if self.shared.lock().forget(key).is_some() {
            let _ = self.commands.send(Command::Cancel(key));
        }
    }

    /// Drops all packets, and returns their keys in order.
    pub(crate) fn interrupt(&self) -> Vec<u64> {
        self.drop_if(|_| true)
    }

    /// Drops the packets that are sent as streams.
    pub(crate) fn drop_streams(&self) {
        self.drop_if(|packet| packet.is_large);
    }

    fn drop_if(&self, is_meant: impl Fn(&Pending) -> bool) -> Vec<u64> {
        let state = self.shared.lock();
        let found = state.pending.iter().filter(|(_, packet)| is_meant(packet)).map(|(key, _)| *key);
        let mut keys: Vec<u64> = found.collect();
        drop(state);
        keys.sort_unstable();
        for key in &keys {
            self.cancel(*key);
        }
        keys
    }

    /// The bytes that wait on the reliable lane.
    pub(crate) fn backlog(&self) -> usize {
        self.shared.lock().backlog
    }

    /// Leaves the room after the packets that wait. The thread ends then.
    pub(crate) fn leave(&self) {
        let _ = self.commands.send(Command::Leave);
    }

    /// Waits until the thread has ended, and returns whether it has.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let state = self.shared.lock();
        let waited = self.shared.ended.wait_timeout_while(state, limit, |state| !state.has_ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.has_ended
    }

    /// Makes the thread panic, for tests.
    pub(crate) fn panic(&self) {
        let _ = self.commands.send(Command::Panic);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: Event) {
        let mut state = self.lock();
        let size = match &event {
            Event::Input(Input::Packet { bytes, .. } | Input::StreamChunk { bytes, .. }) => bytes.len(),
            _ => 0,
        };
        state.event_bytes += size;
        state.events.push_back(event);
        let is_first = state.events.len() == 1;
        drop(state); // the driver is woken by the write, and takes the events
        if is_first {
            // If there is no room for a byte, there is one already; if the driver is gone, nobody reads the events.
            let _ = (&self.wake).write(&[1]);
        }
    }

    /// Notes what became of a packet.
    fn sent(&self, key: u64, result: Result<(), SendError>) {
        let mut state = self.lock();
        let before = state.backlog;
        let Some(packet) = state.forget(key) else { return };
        let is_short = before > SHORT_BACKLOG && state.backlog <= SHORT_BACKLOG;
        drop(state);
        match result {
            Err(error) => self.push(Event::Input(Input::from_failure(key, &SendFailure::from(error)))),
            Ok(()) if packet.is_large => self.push(Event::Sent(Some(key))),
            Ok(()) if is_short => self.push(Event::Sent(None)),
            Ok(()) => {}
        }
    }

    fn end(&self, panicked: Option<String>) {
        self.push(Event::Ended(panicked));
        self.lock().has_ended = true;
        self.ended.notify_all();
    }

    /// Returns when the driver has room for further events.
    async fn has_room(&self) {
        while self.lock().is_full() {
            self.has_room.notified().await;
        }
    }
}

impl State {
    fn is_full(&self) -> bool {
        self.events.len() >= EVENTS || self.event_bytes >= EVENT_BYTES
    }

    fn forget(&mut self, key: u64) -> Option<Pending> {
        let packet = self.pending.remove(&key)?;
        self.pending_bytes -= packet.bytes;
        self.backlog -= if packet.is_reliable { packet.bytes } else { 0 };
        Some(packet)
    }
}

/// The thread's work: returns when the room was left, or could not be joined.
fn run<T: Transport, F: Future<Output = Result<T, String>>>(
    shared: &Shared,
    mut commands: mpsc::UnboundedReceiver<Command>,
    join: impl FnOnce() -> F,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let joined = tokio::select! {
            joined = join() => joined,
            // Nothing else is asked before the room is joined, and without a driver the room is not joined.
            command = commands.recv() => match command {
                Some(Command::Panic) => panic!("a panic was asked for"),
                _ => return finish_tasks().await,
            },
        };
        match joined {
            Ok(transport) => carry(shared, commands, transport).await,
            Err(error) => shared.push(Event::Failed(error)),
        }
        finish_tasks().await;
    });
    Ok(())
}

/// Waits for the tasks of the transport: they send the last packets and leave the room, and would end with the runtime.
async fn finish_tasks() {
    let metrics = tokio::runtime::Handle::current().metrics();
    let all = async {
        while metrics.num_alive_tasks() > 0 {
            tokio::time::sleep(FINISH_STEP).await;
        }
    };
    let _ = tokio::time::timeout(FLUSH, all).await;
}

async fn carry<T: Transport>(
    shared: &Shared,
    mut commands: mpsc::UnboundedReceiver<Command>,
    mut transport: T,
) {
    let mut sending = Sending::default();
    let mut sid = transport.local().sid().clone();
    shared.push(Event::Joined { room: transport.room(), participants: participants(&transport) });
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                Some(Command::Send(packet, of)) => {
                    if of == sid {
                        sending.start(packet, &transport);
                    } else {
                        shared.sent(packet.key, Err(SendError::Interrupted));
                    }
                }
                Some(Command::Cancel(key)) => sending.cancel(key),
                Some(Command::Panic) => panic!("a panic was asked for"),
                Some(Command::Leave) | None => break,
            },
            event = async { shared.has_room().await; transport.recv().await } => {
                let closed = || TransportEvent::Closed(CloseReason::ConnectionLost("the transport ended".into()));
                let event = event.unwrap_or_else(closed);
                let is_closed = matches!(event, TransportEvent::Closed(_));
                if let TransportEvent::ConnectionState(ConnectionState::Connected) = event {
                    sid = transport.local().sid().clone();
                }
                if let Some(input) = input_of(&event, &transport) {
                    shared.push(Event::Input(input));
                }
                if is_closed {
                    return;
                }
            }
            Some(sent) = sending.tasks.join_next() => {
                if let Ok((key, result)) = sent {
                    sending.large.remove(&key);
                    shared.sent(key, result);
                }
            }
        }
    }
    // The transport's close waits for packets that it has sent, and not for those that are queued: the goodbye.
    let _ = tokio::time::timeout(FLUSH, async { while sending.tasks.join_next().await.is_some() {} }).await;
    transport.close().await;
}

/// The packets that the transport sends.
#[derive(Default)]
struct Sending {
    tasks: JoinSet<(u64, Result<(), SendError>)>,
    /// Those that are sent as streams.
    large: HashMap<u64, AbortHandle>,
}

impl Sending {
    fn start(&mut self, outgoing: Outgoing, transport: &impl Transport) {
        let Outgoing { key, to, is_broadcast, topic, is_reliable, overtakes, stream, bytes } = outgoing;
        let mut packet = match is_broadcast {
            true => Packet::broadcast(bytes),
            false => Packet::new(to.into_iter().map(Identity::from), bytes),
        };
        packet.id = key;
        packet.topic = topic.into();
        packet.lane = if is_reliable { Lane::Reliable } else { Lane::Lossy };
        packet.overtakes = overtakes;
        packet.stream = stream.map(Into::into);
        let is_large = packet.stream.is_some();
        let sent = transport.send(packet); // queued now, in the order of these calls
        let task = self.tasks.spawn(async move { (key, sent.await) });
        if is_large {
            self.large.insert(key, task);
        }
    }

    /// Stops sending a stream. A small packet has left, or will.
    fn cancel(&mut self, key: u64) {
        if let Some(task) = self.large.remove(&key) {
            task.abort();
        }
    }
}

/// Returns the input by which the driver reports an event to the core, or `None` if the core need not know of it. The thread
/// leaves out the header of a stream on another topic than toolbridge's, since apps may send media in such streams. The core
/// ignores the chunks that follow.
fn input_of(event: &TransportEvent, transport: &impl Transport) -> Option<Input> {
    match event {
        TransportEvent::ConnectionState(ConnectionState::Connected) => Some(participants(transport)),
        TransportEvent::Stream { part: StreamPart::Header(header), .. } if header.topic != STREAM_TOPIC => {
            None
        }
        _ => Input::from_event(event),
    }
}

/// The participants of this join.
fn participants(transport: &impl Transport) -> Input {
    let present = transport.present();
    Input::Rejoined { local: (&transport.local()).into(), present: present.iter().map(Into::into).collect() }
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` passes the error")]
fn text_of(error: ConnectError) -> String {
    error.to_string()
}

//! Records a session: a handle queues events, and a thread writes them.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::{Duration, SystemTime},
};

use tokio::{sync::watch, time::Instant};

use super::{
    Entry, HIDDEN, Moment, RecordError, RecorderStats, Redact, RoomEvent, Tap,
    live_file::LiveFile,
    queue::{Item, NO_TICKET, Queue},
    strangers::Strangers,
    writer_thread::WriterThread,
};
use crate::transport::{Role, Transport};

/// How long dropping the last handle waits until queued items are written.
const DRAIN: Duration = Duration::from_secs(1);

/// Options of a recorder.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecorderOptions {
    /// Replaces an existing file. Default: false; an existing file is an error.
    pub force: bool,
    /// How many entries may be queued; entries beyond are counted but not recorded. Default: 8,192.
    pub entries: usize,
    /// How many bytes the queued entries may have. Default: 32 MiB.
    pub bytes: usize,
    /// The role of the recorded participant. Default: from its token.
    pub role: Option<Role>,
    /// Marks the recorded participant as an observer that others cannot see, so that it receives only broadcasts.
    /// Default: false.
    pub hidden: bool,
    /// What to redact before writing. Default: see [`Redact`].
    pub redact: Redact,
    /// How many bytes one participant without rights may add. Default: 4 MiB.
    pub stranger_bytes: usize,
    /// How many bytes all participants without rights together may add. Default: 32 MiB.
    pub strangers_bytes: usize,
}

impl Default for RecorderOptions {
    fn default() -> Self {
        Self {
            force: false,
            entries: 8_192,
            bytes: 32 * 1024 * 1024,
            role: None,
            hidden: false,
            redact: Redact::default(),
            stranger_bytes: 4 * 1024 * 1024,
            strangers_bytes: 32 * 1024 * 1024,
        }
    }
}

impl RecorderOptions {
    /// Replaces an existing file.
    #[must_use]
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// Limits the entries that may be queued, and their bytes.
    #[must_use]
    pub fn queue(mut self, entries: usize, bytes: usize) -> Self {
        (self.entries, self.bytes) = (entries, bytes);
        self
    }

    /// Sets what to redact before writing.
    #[must_use]
    pub fn redact(mut self, redact: Redact) -> Self {
        self.redact = redact;
        self
    }

    /// Records ids, names, types, sizes, times and outcomes, but no arguments, results or other texts, as
    /// [`Redact::everything`] does; what was set to be kept is not. The file says so of itself:
    /// [`About::metadata_only`](super::About::metadata_only).
    #[must_use]
    pub fn metadata_only(self) -> Self {
        self.redact(Redact::everything())
    }

    /// Sets how many bytes one participant without rights may add to the file, and all of them together.
    ///
    /// Such a participant is in the room, but its token makes it neither a client nor an assistant, and the recorded
    /// participant has not greeted or called it. Its packets, and packets to it, count with 256 bytes more each. Beyond a
    /// limit they are left out, and [`RoomEvent::LeftOut`] counts them. Compressed packets of it are not expanded.
    #[must_use]
    pub fn strangers(mut self, each: usize, all: usize) -> Self {
        (self.stranger_bytes, self.strangers_bytes) = (each, all);
        self
    }

    /// Marks the recorded participant as an observer that others cannot see.
    #[must_use]
    pub fn hidden(mut self) -> Self {
        (self.role, self.hidden) = (Some(Role::Observer), true);
        self
    }

    /// Sets the role of the recorded participant.
    #[must_use]
    pub fn role(mut self, role: Role) -> Self {
        self.role = Some(role);
        self
    }
}

/// Records a session to a file. Clones share one recorder.
///
/// Recording an event is cheap and never blocks: a separate thread writes the file. Events that do not fit in the
/// queue are counted, and the file contains the count. If writing fails, for example on a full disk, the recording
/// stops with one error in the log and in [`stats`](Recorder::stats); the recorded session continues.
///
/// The file can be read up to the last message while it is written, even after a crash. When the recording ends, a
/// compressed file with an index replaces it. Dropping the last handle also ends the recording; the drop waits until
/// queued items are in the file (at most 1 s), but not for the index.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> anyhow::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("toolbridge-recorder-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let path = folder.join("session.mcap");
/// use toolbridge::{transport::Transport, memory, recording::{Recorder, RecorderOptions, Recording}};
///
/// let room = memory::MemoryRoom::new();
/// let recorder = Recorder::create(&path, RecorderOptions::default())?;
/// let mut phone = recorder.tap(room.client("phone")); // for `Client::builder().join_over(phone)`
/// phone.close().await;
/// recorder.finish()?;
/// assert_eq!(Recording::open(&path)?.about().identity, Some("phone".into()));
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Recorder(Arc<Handle>);

/// Owned by handles only: dropping the last one ends the recording.
struct Handle(Arc<Shared>);

/// Reads the counters of a recorder without keeping its recording open.
pub(crate) struct RecorderWatch(Arc<Shared>);

impl RecorderWatch {
    pub(crate) fn stats(&self) -> RecorderStats {
        self.0.queue.stats()
    }
}

impl fmt::Debug for RecorderWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RecorderWatch").field(&self.0.path).finish()
    }
}

/// The state shared by handles and the writer thread.
pub(super) struct Shared {
    path: PathBuf,
    clock: Clock,
    queue: Queue,
    strangers: Mutex<Strangers>,
    role: Arc<OnceLock<Role>>,
    hidden: bool,
    done: watch::Sender<bool>,
}

impl Recorder {
    /// Starts a recording: creates a file that only its owner can read, and locks it. The content of an existing file stays until the
    /// first entry is written. If the last handle is dropped before that, there is no recording: a new file is removed, and an
    /// existing one stays as it was.
    ///
    /// # Errors
    /// [`RecordError::Exists`] if the file exists, [`RecordError::Create`] if it cannot be created (a symbolic link
    /// is not followed) or another recorder writes it, or [`RecordError::Thread`].
    pub fn create(path: impl AsRef<Path>, options: RecorderOptions) -> Result<Self, RecordError> {
        let path = path.as_ref();
        let file = LiveFile::open(path, options.force)?;
        let role = Arc::new(options.role.map_or_else(OnceLock::new, OnceLock::from));
        let queue = Queue::new(options.entries, options.bytes);
        let strangers = Mutex::new(Strangers::new(&options));
        let writer_thread = WriterThread::new(file, options.redact, Arc::clone(&role));
        let (path, clock, done) = (path.to_owned(), Clock::new(), watch::Sender::new(false));
        let shared = Arc::new(Shared { path, clock, queue, strangers, role, hidden: options.hidden, done });
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new().name("toolbridge-rec".to_owned());
        thread.spawn(move || theirs.run(writer_thread)).map_err(RecordError::Thread)?;
        Ok(Self(Arc::new(Handle(shared))))
    }

    /// Wraps a transport and records its packets and events.
    pub fn tap<T: Transport>(&self, transport: T) -> Tap<T> {
        Tap::new(self.clone(), transport)
    }

    /// Records an entry. Its channel and sequence number are assigned again.
    pub fn record(&self, entry: Entry) {
        self.shared().queue.push(Item::of(entry.at, entry.what));
        self.shared().queue.wake();
    }

    /// Returns the counters.
    pub fn stats(&self) -> RecorderStats {
        self.shared().queue.stats()
    }

    /// Ends the recording and blocks until the file is finished. Later entries are not recorded. In async code, close
    /// the [`Tap`] instead.
    ///
    /// # Errors
    /// [`RecordError::Stopped`] if writing failed. What was written before stays readable.
    pub fn finish(&self) -> Result<(), RecordError> {
        self.shared().close();
        self.shared().queue.wait().map_err(RecordError::Stopped)
    }

    /// Waits until the recording has ended: its file is finished, or it stopped early and [`stats`](Recorder::stats)
    /// has the reason.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> anyhow::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("toolbridge-ended-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// # let path = folder.join("session.mcap");
    /// use toolbridge::{transport::Transport, memory, recording::{Recorder, RecorderOptions}};
    ///
    /// let room = memory::MemoryRoom::new();
    /// let recorder = Recorder::create(&path, RecorderOptions::default())?;
    /// let mut eye = recorder.tap(room.observer("eye")); // an observer receives copies of the others' frames
    /// tokio::select! {
    ///     () = recorder.ended() => println!("it stopped: {:?}", recorder.stats().failed),
    ///     event = eye.recv() => println!("{event:?}"),
    /// #   () = async {} => {}
    /// }
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Cancel safe: dropping the future has no effect on the recording.
    pub async fn ended(&self) {
        let mut done = self.shared().done.subscribe();
        let _ = done.wait_for(|done| *done).await; // `self` keeps the sender alive
    }

    /// Waits for the end of the recording and returns why it stopped early, if it did. Does not keep the recording
    /// open.
    pub(crate) fn outcome(&self) -> impl Future<Output = Option<String>> + Send + 'static {
        let shared = Arc::clone(self.shared());
        async move {
            let _ = shared.done.subscribe().wait_for(|done| *done).await; // `self` keeps the sender alive
            shared.queue.stats().failed
        }
    }

    /// Returns what reads the counters without keeping the recording open.
    pub(crate) fn watch(&self) -> RecorderWatch {
        RecorderWatch(Arc::clone(self.shared()))
    }

    /// Returns a function that hides a tool's data from now on, unless redaction is off. It does not keep the
    /// recording open.
    pub(crate) fn hiding(&self) -> impl Fn(&str) + Send + 'static {
        let shared = Arc::clone(self.shared());
        move |tool| shared.queue.hide(tool)
    }

    /// Returns a function that records calls that end without a packet. It does not keep the recording open.
    pub(crate) fn noting(&self) -> impl Fn(RoomEvent) + Send + 'static {
        let shared = Arc::clone(self.shared());
        move |event| {
            shared.enqueue(|at| Item::Event(at, event));
        }
    }

    /// Ends the recording if this is the last handle.
    pub(super) fn end_if_last(&self) -> bool {
        let last = Arc::strong_count(&self.0) == 1;
        if last {
            self.shared().close();
        }
        last
    }

    /// Ends the recording if this is the last handle, and waits for that asynchronously.
    pub(super) async fn finish_if_last(&self) {
        if self.end_if_last() {
            self.ended().await;
        }
    }

    pub(super) fn set_role(&self, role: Option<Role>) {
        if let Some(role) = role {
            let _ = self.shared().role.set(role); // a role set earlier is kept
        }
    }

    /// The role to record for the recorded participant, if it is an observer.
    pub(super) fn observes_as(&self) -> Option<&'static str> {
        let word = if self.shared().hidden { HIDDEN } else { Role::Observer.as_str() };
        (self.shared().role.get() == Some(&Role::Observer)).then_some(word)
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.say_left_out();
        if self.0.queue.abandon() {
            self.0.queue.wait_ended(DRAIN); // its file is free then
        } else {
            self.0.queue.wait_drained(DRAIN);
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("path", &self.shared().path).field("stats", &self.stats()).finish()
    }
}

impl Shared {
    /// Queues an item that happens now, and returns the ticket that identifies a packet. The item is written after
    /// [`write`](Shared::write), or a second later.
    pub(super) fn enqueue(&self, what: impl FnOnce(Moment) -> Item) -> u64 {
        let item = what(self.clock.now());
        if matches!(item, Item::Event(_, RoomEvent::Closed { .. })) {
            self.say_left_out(); // the last event says that the recording has ended
        }
        match self.strangers().admit(item) {
            Ok(item) => self.queue.push(item),
            Err(event) => {
                self.queue.leave_out();
                if let Some(event) = event {
                    self.queue.push(Item::Event(self.clock.now(), event));
                }
                NO_TICKET
            }
        }
    }

    /// Closes the queue: nothing more is recorded.
    fn close(&self) {
        self.say_left_out();
        self.queue.close();
    }

    /// Records how many packets were left out, unless the file says so.
    fn say_left_out(&self) {
        for event in self.strangers().unsaid() {
            self.queue.push(Item::Event(self.clock.now(), event));
        }
    }

    /// No critical section can panic, so a poisoned lock is safe to use.
    fn strangers(&self) -> MutexGuard<'_, Strangers> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the writer thread.
    pub(super) fn write(&self) {
        self.queue.wake();
    }

    /// The body of the writer thread.
    fn run(&self, writer_thread: WriterThread) {
        let _end = End(self);
        let path = self.path.display();
        match writer_thread.run(&self.queue) {
            Err(error) => {
                tracing::error!(%path, %error, "the recording stopped; the data written so far is kept");
                self.queue.fail(error);
            }
            Ok((live, _)) if !live.has_begun() => live.discard(),
            Ok((live, messages)) => {
                if let Err(error) = live.finish(messages) {
                    tracing::error!(%path, %error, "the recording could not be indexed; the data stays as it was written");
                    self.queue.fail(RecordError::Index(error.into()));
                }
            }
        }
    }
}

/// Reports the end of the thread, also after a panic.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.queue.fail("the writer thread panicked");
        }
        self.0.queue.end();
        self.0.done.send_replace(true);
    }
}

/// Wall-clock time at the start plus the runtime clock's progress: it never goes back, and follows a paused clock.
struct Clock {
    began: Moment,
    at: Instant,
}

impl Clock {
    fn new() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the recorder owns the clock of its file")]
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { began: Moment(nanos(since)), at: Instant::now() }
    }

    fn now(&self) -> Moment {
        Moment(self.began.0.saturating_add(nanos(self.at.elapsed())))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

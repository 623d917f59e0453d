//! Records: a handle that is told what happens, and a thread that writes it.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, SystemTime},
};

use tokio::{sync::watch, time::Instant};

use super::{
    Entry, HIDDEN, Moment, RecordError, RecorderStats, Redact, RoomEvent, Tap,
    queue::{Item, Queue},
    rewrite, writer,
    writer_thread::WriterThread,
};
use crate::transport::{Role, Transport};

/// How long the last handle waits, when it is dropped, for what was told to be in the file.
const DRAIN: Duration = Duration::from_secs(1);

/// How a session is recorded.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecorderOptions {
    /// Replaces a file that is there. Default: no, and that is an error.
    pub force: bool,
    /// How many entries may wait to be written; what comes beyond is counted and not recorded. Default: 8,192.
    pub entries: usize,
    /// How many bytes they may have, in bytes. Default: 32 MiB.
    pub bytes: usize,
    /// What the recorded participant is there for. Default: what its token says.
    pub role: Option<Role>,
    /// It is an observer that nobody sees, and so hears only what goes to the whole room: the file says so. Default: no.
    pub hidden: bool,
    /// What is taken out before it is written. Default: what [`Redact`] says.
    pub redact: Redact,
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
        }
    }
}

impl RecorderOptions {
    /// Replaces a file that is there.
    #[must_use]
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// How many entries may wait to be written, and how many bytes they may have.
    #[must_use]
    pub fn queue(mut self, entries: usize, bytes: usize) -> Self {
        (self.entries, self.bytes) = (entries, bytes);
        self
    }

    /// What is taken out before it is written.
    #[must_use]
    pub fn redact(mut self, redact: Redact) -> Self {
        self.redact = redact;
        self
    }

    /// The recorded participant is an observer that nobody sees.
    #[must_use]
    pub fn hidden(mut self) -> Self {
        (self.role, self.hidden) = (Some(Role::Observer), true);
        self
    }

    /// What the recorded participant is there for.
    #[must_use]
    pub fn role(mut self, role: Role) -> Self {
        self.role = Some(role);
        self
    }
}

/// Records a session to a file. Clones are the same recorder.
///
/// Telling it something costs its caller little and never waits: a thread writes. What finds no place in the queue is
/// counted, and the file says so. When writing fails, as on a full disk, the recording ends with one error in the log
/// and in [`stats`](Recorder::stats); whatever is recorded goes on.
///
/// While it goes on the file can be read up to the last message, also after the process has died. At its end it is
/// replaced by one with an index, compressed. Dropping the last handle ends it, too; then it waits for what was told
/// to be in the file (1 s at most), but not for the index.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> anyhow::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("toolbridge-recorder-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let path = folder.join("session.mcap");
/// use toolbridge::{Transport, memory, recording::{Recorder, RecorderOptions, Recording}};
///
/// let room = memory::Room::new();
/// let recorder = Recorder::create(&path, RecorderOptions::default())?;
/// let mut phone = recorder.tap(room.client("phone")); // for `Client::builder().join_over(phone)`
/// phone.close().await;
/// recorder.finish()?;
/// assert_eq!(Recording::open(&path)?.about().identity, "phone");
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Recorder(Arc<Handle>);

/// Held by handles alone: the last one ends the recording.
struct Handle(Arc<Shared>);

/// What handles and the thread have in common.
pub(super) struct Shared {
    path: PathBuf,
    clock: Clock,
    queue: Queue,
    role: Arc<OnceLock<Role>>,
    hidden: bool,
    done: watch::Sender<bool>,
}

impl Recorder {
    /// Begins a recording: makes the file, readable by its owner alone.
    ///
    /// # Errors
    /// [`RecordError::Exists`] if it is there already, [`RecordError::Create`] if it cannot be made (a symbolic link
    /// is not followed), [`RecordError::Thread`].
    pub fn create(path: impl AsRef<Path>, options: RecorderOptions) -> Result<Self, RecordError> {
        let path = path.as_ref();
        let file = writer::create_file(path, options.force)?;
        let role = Arc::new(options.role.map_or_else(OnceLock::new, OnceLock::from));
        let queue = Queue::new(options.entries, options.bytes);
        let writer_thread = WriterThread::new(file, options.redact, Arc::clone(&role));
        let (path, clock, done) = (path.to_owned(), Clock::new(), watch::Sender::new(false));
        let shared = Arc::new(Shared { path, clock, queue, role, hidden: options.hidden, done });
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new().name("toolbridge-rec".to_owned());
        thread.spawn(move || theirs.run(writer_thread)).map_err(RecordError::Thread)?;
        Ok(Self(Arc::new(Handle(shared))))
    }

    /// A transport around this one, which tells the recorder what passes.
    pub fn tap<T: Transport>(&self, transport: T) -> Tap<T> {
        Tap::new(self.clone(), transport)
    }

    /// Records one thing. Channels and numbers of packets are given anew.
    pub fn record(&self, entry: Entry) {
        self.shared().queue.push(Item::of(entry.at, entry.what));
        self.shared().queue.wake();
    }

    /// What was counted so far.
    pub fn stats(&self) -> RecorderStats {
        self.shared().queue.stats()
    }

    /// Ends the recording and waits until the file is finished; what is told later is not recorded. It blocks: in
    /// async code, call it where that is no matter, or let [`Tap`] close.
    ///
    /// # Errors
    /// [`RecordError::Stopped`] if writing failed. What was written until then stays and can be read.
    pub fn finish(&self) -> Result<(), RecordError> {
        self.shared().queue.close();
        self.shared().queue.wait().map_err(RecordError::Stopped)
    }

    /// Waits until the recording is over: its file is finished, or it stopped early ([`stats`](Recorder::stats) says
    /// why).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> anyhow::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("toolbridge-ended-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// # let path = folder.join("session.mcap");
    /// use toolbridge::{Transport, memory, recording::{Recorder, RecorderOptions}};
    ///
    /// let room = memory::Room::new();
    /// let recorder = Recorder::create(&path, RecorderOptions::default())?;
    /// let mut eye = recorder.tap(room.observer("eye")); // which hears copies of what the others say to one another
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
    /// Dropped half-way, nothing was lost.
    pub async fn ended(&self) {
        let mut done = self.shared().done.subscribe();
        let _ = done.wait_for(|done| *done).await; // the sender lives as long as we do
    }

    /// Why the recording stopped before its end, once it has ended; whoever waits for that keeps no recording open.
    pub(crate) fn outcome(&self) -> impl Future<Output = Option<String>> + Send + 'static {
        let shared = Arc::clone(self.shared());
        async move {
            let _ = shared.done.subscribe().wait_for(|done| *done).await; // the sender lives as long as we do
            shared.queue.stats().failed
        }
    }

    /// From here on nothing is recorded of what goes to these tools and comes from them, if anything is redacted. Whoever
    /// calls this keeps no recording open.
    pub(crate) fn hiding(&self) -> impl Fn(&str) + Send + 'static {
        let shared = Arc::clone(self.shared());
        move |tool| shared.queue.hide(tool)
    }

    /// Notes calls that end without a packet. Whoever calls this keeps no recording open.
    pub(crate) fn noting(&self) -> impl Fn(RoomEvent) + Send + 'static {
        let shared = Arc::clone(self.shared());
        move |event| {
            shared.tell(|at| Item::Event(at, event));
        }
    }

    /// Ends the recording if nobody else holds it.
    pub(super) fn end_if_last(&self) -> bool {
        let last = Arc::strong_count(&self.0) == 1;
        if last {
            self.shared().queue.close();
        }
        last
    }

    /// Ends the recording if nobody else holds it, and waits for that without blocking.
    pub(super) async fn finish_if_last(&self) {
        if self.end_if_last() {
            self.ended().await;
        }
    }

    pub(super) fn know_role(&self, role: Option<Role>) {
        if let Some(role) = role {
            let _ = self.shared().role.set(role); // what was known before stands
        }
    }

    /// What the file says of the recorded participant, if it is an observer.
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
        self.0.queue.close();
        self.0.queue.wait_drained(DRAIN);
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("path", &self.shared().path).field("stats", &self.stats()).finish()
    }
}

impl Shared {
    /// Takes something that happens now, and gives the ticket by which a packet is named. It will be written once
    /// [`write`](Shared::write) is called, or a second later.
    pub(super) fn tell(&self, what: impl FnOnce(Moment) -> Item) -> u64 {
        self.queue.push(what(self.clock.now()))
    }

    /// Lets what was told be written.
    pub(super) fn write(&self) {
        self.queue.wake();
    }

    /// The thread.
    fn run(&self, writer_thread: WriterThread) {
        let _end = End(self);
        let path = self.path.display();
        match writer_thread.run(&self.queue) {
            Err(error) => {
                tracing::error!(%path, %error, "the recording stops; what was written stays");
                self.queue.fail(error.to_string());
            }
            Ok(live) => {
                if let Err(error) = rewrite::finish(live, &self.path) {
                    tracing::error!(%path, %error, "the recording has no index; all of it is there");
                    self.queue.fail(format!("it has no index: {error}"));
                }
            }
        }
    }
}

/// Says that the thread has ended, however it does.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.queue.fail("the thread that writes is gone".to_owned());
        }
        self.0.queue.end();
        self.0.done.send_replace(true);
    }
}

/// The time of day, as far on from the recorder's beginning as the runtime's clock says: it never goes back, and a
/// paused clock stands still in the file, too.
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

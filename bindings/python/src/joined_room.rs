//! A room that a thread of this module has joined, as a class of Python.

use std::{mem, os::fd::AsRawFd, process, time::Duration};

use pyo3::{
    exceptions::{PyOSError, PyRuntimeError, PyValueError},
    prelude::*,
    types::PyBytes,
};
use toolbridge::{
    Role,
    livekit::{ConnectOptions, E2eeKey, E2eeKeys, TokenClaims},
};
use toolbridge_face::Input;

use crate::room_thread::{Event, Outgoing, RoomThread};

/// The driver's end of a thread that joins a room. Every method raises in a process that was forked after it was made.
#[pyclass(module = "toolbridge._core", frozen)]
#[derive(Debug)]
pub(crate) struct JoinedRoom {
    /// `None` only while it is dropped.
    thread: Option<RoomThread>,
    process: u32,
}

/// The keys of a room that is encrypted end to end. All are derived in one way.
#[pyclass(module = "toolbridge._core", frozen)]
#[derive(Debug)]
pub(crate) struct Keys {
    ring: E2eeKeys,
    is_random: bool,
    salt: Option<Vec<u8>>,
}

#[pymethods]
impl Keys {
    /// Creates a ring with one key.
    #[new]
    fn new(
        py: Python<'_>,
        secret: &[u8],
        is_random: bool,
        salt: Option<Vec<u8>>,
        index: Option<u8>,
        ratchet_window: u8,
    ) -> PyResult<Self> {
        let key = py.detach(|| derived(secret, is_random, salt.as_deref(), index))?;
        Ok(Self { ring: E2eeKeys::new(key).ratchet_window(ratchet_window), is_random, salt })
    }

    /// Puts a key at its place, and sends with it from now on if that is wanted.
    fn put(&self, py: Python<'_>, secret: &[u8], index: Option<u8>, sends: bool) -> PyResult<()> {
        let key = py.detach(|| derived(secret, self.is_random, self.salt.as_deref(), index))?;
        if sends {
            self.ring.set(key);
        } else {
            self.ring.add(key);
        }
        Ok(())
    }

    /// Replaces the key for sending with the next one of its ratchet.
    fn ratchet(&self, py: Python<'_>) {
        py.detach(|| self.ring.ratchet());
    }
}

fn derived(secret: &[u8], is_random: bool, salt: Option<&[u8]>, index: Option<u8>) -> PyResult<E2eeKey> {
    let key = if is_random { E2eeKey::from_random_bytes(secret) } else { E2eeKey::new(secret) };
    let key = salt.into_iter().fold(key, E2eeKey::salt);
    let placed = match index {
        Some(index) => key.index(index),
        None => Ok(key),
    };
    placed.map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Returns what limits the bearer of a token as an assistant or a client.
#[pyfunction]
pub(crate) fn token_warnings(token: &str, is_assistant: bool) -> Vec<String> {
    let wanted = if is_assistant { Role::Assistant } else { Role::Client };
    TokenClaims::from_unverified(token).map(|claims| claims.warnings(wanted)).unwrap_or_default()
}

/// An event: its name, a text (JSON, if it is an input of the core or has participants), and bytes.
type Told<'py> = (&'static str, String, Option<Bound<'py, PyBytes>>);

#[pymethods]
impl JoinedRoom {
    /// Starts to join a room, whose data is encrypted if there are keys. Whether that succeeds is the first event.
    #[new]
    #[pyo3(signature = (url, token, keys=None))]
    fn new(url: String, token: String, keys: Option<&Keys>) -> PyResult<Self> {
        let options =
            keys.into_iter().fold(ConnectOptions::new(), |options, keys| options.e2ee_keys(&keys.ring));
        let thread = RoomThread::start(url, token, options);
        let thread = thread.map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Self { thread: Some(thread), process: process::id() })
    }

    /// Raises if this process was forked after the room was joined.
    fn check_process(&self) -> PyResult<()> {
        self.thread().map(|_| ())
    }

    /// The descriptor that is readable if there are events.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.thread()?.awakened().as_raw_fd())
    }

    /// Takes all events.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Vec<Told<'py>>> {
        Ok(self.thread()?.take().into_iter().map(|event| told(py, event)).collect())
    }

    /// Queues a packet. Returns false if too many wait.
    #[expect(clippy::too_many_arguments, reason = "they are the fields of the output `transmit`")]
    fn send(
        &self,
        key: u64,
        to: Vec<String>,
        is_broadcast: bool,
        topic: String,
        is_reliable: bool,
        overtakes: bool,
        stream: Option<String>,
        bytes: &[u8],
    ) -> PyResult<bool> {
        let bytes = bytes.to_vec();
        let packet = Outgoing { key, to, is_broadcast, topic, is_reliable, overtakes, stream, bytes };
        Ok(self.thread()?.send(packet))
    }

    /// Drops a packet, without a report.
    fn cancel(&self, key: u64) -> PyResult<()> {
        self.thread().map(|thread| thread.cancel(key))
    }

    /// Drops all packets, and returns their keys.
    fn interrupt(&self) -> PyResult<Vec<u64>> {
        self.thread().map(RoomThread::interrupt)
    }

    /// Drops the packets that are sent as streams.
    fn drop_streams(&self) -> PyResult<()> {
        self.thread().map(RoomThread::drop_streams)
    }

    /// The bytes that wait on the reliable lane.
    fn backlog(&self) -> PyResult<usize> {
        self.thread().map(RoomThread::backlog)
    }

    /// Leaves the room after the packets that wait.
    fn leave(&self) -> PyResult<()> {
        self.thread().map(RoomThread::leave)
    }

    /// Waits for the end of the thread, at most so many seconds. Returns whether it has ended.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let thread = self.thread()?;
        let limit = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Ok(py.detach(|| thread.wait(limit)))
    }

    /// Makes the thread panic, for tests.
    fn panic(&self) -> PyResult<()> {
        self.thread().map(RoomThread::panic)
    }
}

impl JoinedRoom {
    fn thread(&self) -> PyResult<&RoomThread> {
        let here = self.thread.as_ref().filter(|_| process::id() == self.process);
        here.ok_or_else(|| {
            PyRuntimeError::new_err(
                "this process was forked after the room was joined, and the participant stays in the process before; \
                 join after the fork, or use the start method \"spawn\"",
            )
        })
    }
}

impl Drop for JoinedRoom {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if process::id() != self.process {
            // The other process's thread may have held a lock when this one was forked.
            mem::forget(thread);
        }
    }
}

fn told(py: Python<'_>, event: Event) -> Told<'_> {
    match event {
        Event::Joined { room, participants } => {
            let name = PyBytes::new(py, room.as_bytes());
            ("joined", participants.into_parts().0, Some(name))
        }
        Event::Failed(why) => ("failed", why, None),
        Event::Sent(key) => ("sent", key.map(|key| key.to_string()).unwrap_or_default(), None),
        Event::Ended(None) => ("ended", String::new(), None),
        Event::Ended(Some(panicked)) => ("panicked", panicked, None),
        Event::Input(input) => {
            let name = match &input {
                Input::ParticipantJoined { .. } => "participant_joined",
                Input::ParticipantLeft { .. } => "participant_left",
                Input::Connection { .. } => "reconnecting",
                Input::Rejoined { .. } => "connected",
                Input::Closed { .. } => "closed",
                _ => "input",
            };
            let (text, bytes) = input.into_parts();
            (name, text, bytes.map(|bytes| PyBytes::new(py, &bytes)))
        }
    }
}

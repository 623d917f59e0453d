//! toolbridge's state machine for Python: [`JsonSession`] as a class.
//!
//! `bindings/README.md` describes the inputs and outputs, and the interface of the class.

#[cfg(all(feature = "join", unix))]
mod joined_room;
#[cfg(all(feature = "join", unix))]
mod room_thread;

use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
    types::PyBytes,
};
use toolbridge_face::{Guarded, JsonSession, Malformed, Panicked};

/// The module `toolbridge._core`.
#[pymodule]
mod _core {
    #[pymodule_export]
    use super::Session;
    #[cfg(all(feature = "join", unix))]
    #[pymodule_export]
    use super::joined_room::{JoinedRoom, Keys, token_warnings};
}

/// One end of the protocol. After a panic, and after `free`, every call raises.
#[pyclass(module = "toolbridge._core")]
#[derive(Debug)]
struct Session {
    /// `None` after `free`.
    session: Option<Guarded<JsonSession>>,
}

#[pymethods]
impl Session {
    /// Creates a session from the input `create`. Raises `ValueError` if it is malformed.
    #[staticmethod]
    fn create(input: &str) -> PyResult<Self> {
        let created = Guarded::create(|| JsonSession::create(input)).map_err(panicked)?;
        Ok(Self { session: Some(created.map_err(malformed)?) })
    }

    /// Passes an input or a query, whose field `bytes` may be beside it. Returns its reply, if it has one.
    ///
    /// Raises `ValueError` if the input is malformed. It had no effect then.
    #[pyo3(signature = (input, bytes=None))]
    fn handle(&mut self, input: &str, bytes: Option<&[u8]>) -> PyResult<Option<String>> {
        self.run(|session| session.handle(input, bytes.map(<[u8]>::to_vec)))?.map_err(malformed)
    }

    /// Reports that a packet was sent at this time: the next one can leave.
    fn sent(&mut self, at: f64, packet: u64) -> PyResult<()> {
        self.run(|session| session.sent(at, packet))?.map_err(malformed)
    }

    /// Reports that the function of a job begins at this time. Returns false if the job has ended, and the function must not run.
    fn start(&mut self, at: f64, job: u64) -> PyResult<bool> {
        self.run(|session| session.start(at, job))?.map_err(malformed)
    }

    /// Returns the next output without its field `bytes`, or `None` if there is none.
    fn next_output(&mut self) -> PyResult<Option<String>> {
        self.run(JsonSession::next_output)
    }

    /// Takes the bytes of the last output, if it has any.
    fn take_bytes<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let bytes = self.run(JsonSession::take_bytes)?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Returns when the input `timeout` is due, in milliseconds since the driver's zero point.
    fn next_deadline(&mut self) -> PyResult<Option<f64>> {
        self.run(|session| session.next_deadline())
    }

    /// Frees the session now, and not when Python collects the object.
    fn free(&mut self) {
        self.session = None;
    }
}

impl Session {
    fn run<T>(&mut self, run: impl FnOnce(&mut JsonSession) -> T) -> PyResult<T> {
        let Some(session) = &mut self.session else {
            return Err(PyRuntimeError::new_err("the session was freed"));
        };
        session.run(run).map_err(panicked)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` passes the error")]
fn malformed(error: Malformed) -> PyErr {
    PyValueError::new_err(error.to_string())
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` passes the error")]
fn panicked(error: Panicked) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

//! toolbridge's state machine for JavaScript: [`JsonSession`] as a class.
//!
//! `bindings/README.md` describes the inputs and outputs, and the interface of the class.

use std::{panic, sync::Once};

use toolbridge_face::{JsonSession, Malformed};
use wasm_bindgen::prelude::*;

#[wasm_bindgen]
extern "C" {
    /// JavaScript's `Error`. One about a malformed input has the property `field`, which no other error of the core has.
    #[wasm_bindgen(js_name = Error)]
    pub type InputError;

    #[wasm_bindgen(constructor, js_class = "Error")]
    fn new(message: &str) -> InputError;

    #[wasm_bindgen(method, setter)]
    fn set_field(this: &InputError, field: &str);
}

/// One end of the protocol. After a panic, every call throws.
#[wasm_bindgen]
#[derive(Debug)]
pub struct Session {
    session: JsonSession,
}

#[wasm_bindgen]
impl Session {
    /// Creates a session from the input `create`.
    ///
    /// # Errors
    /// The input is malformed.
    pub fn create(input: &str) -> Result<Session, InputError> {
        throw_panics();
        Ok(Self { session: JsonSession::create(input).map_err(error)? })
    }

    /// Passes an input or a query, whose field `bytes` may be beside it. Returns its reply, if it has one.
    ///
    /// # Errors
    /// The input is malformed. It had no effect.
    pub fn handle(&mut self, input: &str, bytes: Option<Vec<u8>>) -> Result<Option<String>, InputError> {
        self.session.handle(input, bytes).map_err(error)
    }

    /// Reports that a packet was sent at this time: the next one can leave.
    ///
    /// # Errors
    /// The time is malformed.
    pub fn sent(&mut self, at: f64, packet: f64) -> Result<(), InputError> {
        self.session.sent(at, packet as u64).map_err(error)
    }

    /// Reports that the function of a job begins at this time. Returns false if the job has ended, and the function must not run.
    ///
    /// # Errors
    /// The time is malformed.
    pub fn start(&mut self, at: f64, job: f64) -> Result<bool, InputError> {
        self.session.start(at, job as u64).map_err(error)
    }

    /// Returns the next output without its field `bytes`, or `undefined` if there is none.
    #[wasm_bindgen(js_name = nextOutput)]
    pub fn next_output(&mut self) -> Option<String> {
        self.session.next_output()
    }

    /// Takes the bytes of the last output, if it has any.
    #[wasm_bindgen(js_name = takeBytes)]
    pub fn take_bytes(&mut self) -> Option<Vec<u8>> {
        self.session.take_bytes()
    }

    /// Returns when the input `timeout` is due, in milliseconds since the driver's zero point.
    #[wasm_bindgen(js_name = nextDeadline)]
    pub fn next_deadline(&self) -> Option<f64> {
        self.session.next_deadline()
    }
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` passes the error")]
fn error(malformed: Malformed) -> InputError {
    let error = InputError::new(&malformed.to_string());
    error.set_field(&malformed.field);
    error
}

/// Makes a panic an exception with its message. The class that wraps the session stays borrowed then, so that each later call
/// throws, too.
fn throw_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| panic::set_hook(Box::new(|panic| wasm_bindgen::throw_str(&format!("panic: {panic}")))));
}

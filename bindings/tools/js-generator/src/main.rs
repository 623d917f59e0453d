//! Makes the glue between JavaScript and a WebAssembly module: `js-generator MODULE FOLDER`.
//!
//! The module must be stripped, and built without reference types. It then has one table, which `wasm2js` demands.

use std::{env, process::ExitCode};

use wasm_bindgen_cli_support::Bindgen;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [module, folder] = &arguments[..] else {
        eprintln!("usage: js-generator MODULE FOLDER");
        return ExitCode::from(2);
    };
    let mut generator = Bindgen::new();
    generator.input_path(module).out_name("core").typescript(false);
    let made = generator.bundler(true).and_then(|generator| generator.generate(folder));
    match made {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("js-generator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

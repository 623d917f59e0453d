//! Makes the glue between JavaScript and a WebAssembly module: `js-generator MODULE FOLDER [--without-references]`.
//!
//! Without references, the module has one table and no instructions beyond the first version of WebAssembly, which
//! `wasm2js` demands.

use std::{env, process::ExitCode};

use wasm_bindgen_cli_support::Bindgen;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (module, folder, references) = match &arguments[..] {
        [module, folder] => (module, folder, true),
        [module, folder, option] if option == "--without-references" => (module, folder, false),
        _ => {
            eprintln!("usage: js-generator MODULE FOLDER [--without-references]");
            return ExitCode::from(2);
        }
    };
    let mut generator = Bindgen::new();
    generator.input_path(module).out_name("core").typescript(false).reference_types(references);
    let made = generator.bundler(true).and_then(|generator| generator.generate(folder));
    match made {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("js-generator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

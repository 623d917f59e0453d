//! `toolbridge redact`: removes tool parameters and results from a recording.

use std::{collections::BTreeSet, path::PathBuf};

use clap::Args;

use crate::cli::terminal::{failure::Failure, file};
use toolbridge::recording::{Redact, redact};

/// The maximum number of tools that an error message about `--keep` lists.
const MAX_NAMED: usize = 20;

#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    /// Recording to redact
    input: PathBuf,

    /// Output file, indexed and compressed
    output: PathBuf,

    /// Keep the parameters and results of this tool, except values under secret-looking keys (repeatable)
    #[arg(long, value_name = "NAME")]
    keep: Vec<String>,

    /// Keep the messages, channels and schemas of other programs, unsearched
    #[arg(long)]
    keep_foreign: bool,

    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
}

pub(in crate::cli) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (mut unknown, mut tools): (BTreeSet<&str>, _) =
        (arguments.keep.iter().map(String::as_str).collect(), BTreeSet::new());
    if !unknown.is_empty() {
        file::each(&arguments.input, |_, _, entry| {
            for tool in entry.tool_names() {
                unknown.remove(tool.as_str());
                if tools.len() < MAX_NAMED && !tools.contains(&tool) {
                    tools.insert(tool);
                }
            }
            Ok(())
        })?;
    }
    if let Some(unknown) = unknown.first() {
        let tools: Vec<_> = tools.into_iter().collect();
        return Err(Failure::Usage(format!(
            "--keep {unknown:?}: the recording has no tool with this name; its tools are {}",
            if tools.is_empty() { "none".to_owned() } else { tools.join(", ") }
        )));
    }
    let mut rule = arguments.keep.iter().fold(Redact::everything(), |rule, name| rule.keep(name.as_str()));
    if arguments.keep_foreign {
        rule = rule.keep_foreign();
    }
    let left = redact(&arguments.input, &arguments.output, rule, arguments.force)
        .map_err(|error| file::refused(&arguments.input, &error))?;
    file::written(&left)
}

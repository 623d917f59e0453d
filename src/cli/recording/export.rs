//! `toolbridge export`: converts a recording for other programs.

use std::{
    io::{self, BufWriter, Write},
    path::PathBuf,
};

use clap::{Args, ValueEnum};

use crate::cli::terminal::{
    failure::{Failure, hint},
    file, text,
};
use toolbridge::recording::{CallsBuilder, Moment, entry_json, write_trace};

#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    /// Recording to convert
    file: PathBuf,

    /// Output format
    #[arg(long, value_enum)]
    to: Form,

    /// Output file [default: standard output]
    #[arg(long, short, value_name = "OUT")]
    output: Option<PathBuf>,

    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// One JSON object per line, for jq
    Jsonl,
    /// The calls as a Chrome trace, for ui.perfetto.dev and chrome://tracing
    Trace,
}

pub(in crate::cli) fn run(arguments: &Arguments) -> Result<(), Failure> {
    // Open the input first, so that an invalid one leaves no empty output file.
    drop(file::open(&arguments.file)?);
    let damage = match &arguments.output {
        None => write(arguments, &mut BufWriter::new(io::stdout().lock()))?,
        Some(path) => {
            file::differs(&arguments.file, path)?;
            let mut out = file::create(path, arguments.force)?;
            let damage = write(arguments, &mut out)?;
            file::finish(path, out)?;
            damage
        }
    };
    file::end(&arguments.file, damage)
}

fn write(arguments: &Arguments, out: &mut impl Write) -> Result<Option<String>, Failure> {
    let damage = match arguments.to {
        Form::Jsonl => {
            let (_, damage) = file::each(&arguments.file, |_, index, entry| {
                text::write_json(out, &entry_json(index, entry))?;
                Ok(out.write_all(b"\n")?)
            })?;
            damage
        }
        Form::Trace => {
            let (mut builder, mut last) = (CallsBuilder::default(), Moment(0));
            let (about, damage) = file::each(&arguments.file, |_, _, entry| {
                builder.push(entry);
                last = last.max(entry.at);
                Ok(())
            })?;
            let calls = builder.finish();
            write_trace(&calls, about.begun, last, out)?;
            if calls.dropped > 0 {
                hint(&format!("{} more calls omitted", calls.dropped));
            }
            damage
        }
    };
    out.flush()?;
    Ok(damage)
}

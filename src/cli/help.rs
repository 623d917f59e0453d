//! Lists the verbs of `toolbridge --help` in groups.

use std::fmt::Write as _;

use clap::Command;

/// The verbs of each group, in the order of the list.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Rooms", &["client", "call", "assistant", "tools", "watch", "ping", "token", "doctor"]),
    (
        "Recordings",
        &["record", "info", "cat", "calls", "check", "report", "replay", "redact", "repair", "frame"],
    ),
    ("Other tool systems", &["mcp", "rap", "acp", "acp-agent"]),
    ("Development", &["demo", "dev", "completions", "help"]),
];

/// What clap says of the verb that it adds.
const HELP: &str = "Print this message or the help of a command";

/// Returns a command whose help lists its verbs in groups: clap has one heading for all.
pub(super) fn grouped(command: Command) -> Command {
    let list = list(&command);
    let header = command.get_styles().get_header();
    let options = format!("{header}Options:{header:#}");
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}{options}\n{{options}}{{after-help}}"
    ))
}

fn list(command: &Command) -> String {
    let styles = command.get_styles();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let names = command.get_subcommands().map(Command::get_name);
    let width = names.map(str::len).max().unwrap_or_default();
    let mut list = String::new();
    for (title, verbs) in GROUPS {
        let _ = writeln!(list, "{header}{title}:{header:#}"); // writing to a String cannot fail
        for verb in verbs {
            let about = command.find_subcommand(verb).and_then(Command::get_about);
            let about = about.map_or_else(|| HELP.to_owned(), ToString::to_string);
            let _ = writeln!(list, "  {literal}{verb:width$}{literal:#}  {about}");
        }
        list.push('\n');
    }
    list
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Arguments;

    #[test]
    fn each_verb_is_in_one_group() {
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, verbs)| verbs.iter().copied()).collect();
        let distinct: BTreeSet<&str> = grouped.iter().copied().collect();
        assert_eq!(grouped.len(), distinct.len(), "{grouped:?}");
        let mut command = Arguments::command();
        command.build();
        let verbs: BTreeSet<&str> = command.get_subcommands().map(Command::get_name).collect();
        assert_eq!(distinct, verbs);
    }
}

//! The HELP subcommand.

use crate::commands::call::Call;
use node::command::spec::Outcome;
use node::command::table::find;
use std::fmt::Write as _;

/// Writes the help of a container command in Redis's format.
pub(crate) fn help(call: &mut Call<'_>) -> Outcome {
    let name = call.spec.name.split('|').next().unwrap_or_default();
    let Some((_, spec)) = find(name.as_bytes()) else { return Err(call.wrong_arity()) };
    let mut lines = vec![format!(
        "{} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        name.to_ascii_uppercase()
    )];
    for sub in spec.subcommands {
        let mut line = sub.own_name().to_ascii_uppercase();
        if !sub.usage.is_empty() {
            let _ = write!(line, " {}", sub.usage);
        }
        lines.push(line);
        lines.push(format!("    {}", sub.summary));
    }
    call.reply.array(lines.len());
    for line in lines {
        call.reply.simple(&line);
    }
    Ok(())
}

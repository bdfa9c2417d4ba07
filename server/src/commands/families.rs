//! List of all command families, in the order of the reference.

use crate::commands::admin::{audit, diagnostics, ingest, server};
use crate::commands::cluster::topology;
use crate::commands::command::{self, Command};
use crate::commands::connection::client;
use crate::commands::counter::{cnt, hash, string};
use crate::commands::feed::{forget, page, weibo};
use crate::commands::flags::{bloom, cuckoo, members, phantom, set, unseen};
use crate::commands::keys::{keyspace, restore, walk};
use crate::commands::schema::{spaces, views};
use crate::commands::stream::{claim, group, info, range, read};
use crate::commands::{pubsub, replication, transaction};

/// Title of each family in the reference, and the commands of the family.
#[rustfmt::skip]
pub(crate) const FAMILIES: &[(&str, &[&[Command]])] = &[
    ("Feed pages", &[page::COMMANDS]),
    ("Forgetting", &[forget::COMMANDS]),
    ("Counters", &[cnt::COMMANDS]),
    ("Flags", &[phantom::COMMANDS, unseen::COMMANDS, members::COMMANDS]),
    ("Hashes: rows of counters", &[hash::COMMANDS]),
    ("Strings: single counters", &[string::COMMANDS]),
    ("Sets: the members of one id", &[set::COMMANDS]),
    ("Bloom filters: the members of one id", &[bloom::COMMANDS]),
    ("Cuckoo filters: the members of one id", &[cuckoo::COMMANDS]),
    ("Compatibility with Weibo's counter service", &[weibo::COMMANDS]),
    ("Changes", &[
        read::XREAD, range::READS, info::XINFO, group::XGROUP, read::XREADGROUP, group::PENDING,
        claim::COMMANDS, range::REFUSED,
    ]),
    ("Keys", &[keyspace::COMMANDS, restore::COMMANDS, walk::COMMANDS, keyspace::OBJECT]),
    ("Spaces and tables", &[spaces::COMMANDS]),
    ("Views and actions", &[views::COMMANDS]),
    ("Audits", &[audit::COMMANDS]),
    ("Ingest from brokers", &[ingest::COMMANDS]),
    ("Connection", &[client::COMMANDS]),
    ("Channels", &[pubsub::COMMANDS]),
    ("Transactions", &[transaction::COMMANDS]),
    ("Server", &[server::COMMANDS]),
    ("Observation", &[diagnostics::COMMANDS]),
    ("Replication", &[replication::COMMANDS]),
    ("Clusters, modules, functions and scripts", &[topology::COMMANDS]),
];

/// Registers all commands in the process; call it before creating a node.
pub(crate) fn install() {
    command::install(FAMILIES.iter().flat_map(|(_, tables)| tables.iter().copied().flatten()));
}

#[cfg(test)]
mod tests {
    use super::install;
    use node::command::spec::flag;
    use node::command::table::{all, with_numbers};

    #[test]
    fn rows_are_well_formed() {
        install();
        for (_, spec) in with_numbers() {
            assert_eq!(spec.name, spec.name.to_ascii_lowercase());
            assert!(spec.arity != 0 && !spec.summary.is_empty(), "{}", spec.name);
            assert!(spec.summary.ends_with('.'), "{}", spec.name);
            let (first, last, step) = spec.keys.positions();
            assert!(
                first >= 0 && (first == 0) == (step == 0) && (first == 0) == (last == 0),
                "{}",
                spec.name
            );
            assert!(spec.arity.abs() > first, "{}: the first key may be missing", spec.name);
            assert!(!(spec.has(flag::WRITE) && spec.has(flag::READONLY)), "{}", spec.name);
        }
        for spec in all() {
            for sub in spec.subcommands {
                assert!(
                    sub.name.starts_with(&format!("{}|", spec.name)),
                    "{} in {}",
                    sub.name,
                    spec.name
                );
                assert!(sub.arity.abs() >= 2, "{}", sub.name);
            }
        }
    }
}

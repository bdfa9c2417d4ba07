//! The rows of `server/src/handlers/admin/diagnostics.rs`.

use crate::command::spec::{NO_KEYS, SECOND_KEY, Spec, flag, help_row, rows_of};

rows_of!("server", NO_KEYS);

pub(crate) const LOOK: u32 = flag::ADMIN | flag::LOADING | flag::STALE | flag::NOSCRIPT;

#[rustfmt::skip]
pub(crate) const TABLE: &[Spec] = &[
    Spec {
        subcommands: &[
            spec("slowlog|get", -2, LOOK, "2.2.12", "[count]",
                "The newest entries (10; -1: all): number, time, microseconds, arguments, the \
                 client's address and name. Commands of constant time with few arguments are timed \
                 only while slowlog-log-slower-than lies below 10000."),
            help_row("slowlog|help", "server", "6.2.0"),
            spec("slowlog|len", 2, LOOK, "2.2.12", "", "How many entries there are."),
            spec("slowlog|reset", 2, LOOK, "2.2.12", "", "Forgets all entries."),
        ],
        ..spec("slowlog", -2, 0, "2.2.12", "", "A container for commands about slow commands.")
    },
    Spec {
        subcommands: &[
            spec("latency|doctor", 2, LOOK, "2.8.13", "",
                "What the latencies so far say, in words."),
            help_row("latency|help", "server", "2.8.13"),
            spec("latency|histogram", -2, LOOK, "7.0.0", "[command [command ...]]",
                "Per command its calls, and how many of them took at most so many microseconds: \
                 powers of two. One call in 64 of commands of constant time is timed, and stands \
                 for the others."),
            spec("latency|history", 3, LOOK, "2.8.13", "event",
                "Times and milliseconds of an event (command, fast-command) above \
                 latency-monitor-threshold."),
            spec("latency|latest", 2, LOOK, "2.8.13", "",
                "Per event its name, the time and the milliseconds of the latest one, and the most \
                 milliseconds."),
            spec("latency|reset", -2, LOOK, "2.8.13", "[event [event ...]]",
                "Forgets these events, or all; answers how many."),
        ],
        ..spec("latency", -2, 0, "2.8.13", "", "A container for commands about latency.")
    },
    spec("monitor", 1, LOOK | flag::NO_MULTI, "1.0.0", "",
        "Shows every command of every client, but for those of operators, until the connection \
         ends or is RESET."),
    Spec {
        subcommands: &[
            spec("memory|doctor", 2, flag::STALE, "4.0.0", "",
                "Whether the memory limits are near, in words."),
            help_row("memory|help", "server", "4.0.0"),
            spec("memory|malloc-stats", 2, flag::STALE, "4.0.0", "", 
                "The allocator, jemalloc: its statistics are not compiled in."),
            spec("memory|purge", 2, flag::STALE, "4.0.0", "", "OK: nothing is kept back."),
            spec("memory|stats", 2, flag::STALE, "4.0.0", "",
                "Where memory goes, under Redis's names."),
            Spec { keys: SECOND_KEY, ..spec("memory|usage", -3, flag::READONLY, "4.0.0",
                "key [SAMPLES count]",
                "Bytes that the key's row takes in a full table, with the values that its fields \
                 are too narrow for; nil if there is no such row.") },
        ],
        ..spec("memory", -2, 0, "4.0.0", "", "A container for commands about memory.")
    },
    Spec {
        subcommands: &[
            help_row("debug|help", "server", "1.0.0"),
            Spec { keys: SECOND_KEY,
                ..spec("debug|object", 3, LOOK | flag::READONLY, "1.0.0", "key",
                "How a key's value is held, in the form of Redis.") },
            spec("debug|set-active-expire", 3, LOOK, "3.0.0", "<0|1>", "OK: nothing expires."),
            spec("debug|reload", -2, LOOK | flag::NO_MULTI, "1.0.0", "[option [option ...]]",
                "Writes a snapshot and answers OK when it is complete; nothing is read back."),
            spec("debug|sleep", 3, LOOK | flag::NO_MULTI, "1.0.0", "seconds",
                "Answers after so many seconds (an hour at most). Only this connection waits."),
        ],
        ..spec("debug", -2, 0, "1.0.0", "", "A container for what helps tests.")
    },
];

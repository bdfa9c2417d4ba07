//! The rows of `server/src/handlers/admin/acl.rs`.

use crate::command::spec::{ALWAYS, NO_KEYS, Spec, flag, help_row};

pub(crate) const ADMIN: u32 = ALWAYS | flag::ADMIN;

pub(crate) const fn spec(
    name: &'static str,
    arity: i32,
    flags: u32,
    usage: &'static str,
    summary: &'static str,
) -> Spec {
    Spec {
        name,
        arity,
        flags,
        keys: NO_KEYS,
        group: "server",
        since: "6.0.0",
        usage,
        summary,
        subcommands: &[],
    }
}

#[rustfmt::skip]
pub(crate) const ACL: Spec = Spec {
    subcommands: &[
        spec("acl|cat", -2, ALWAYS, "[categoryname]", "The categories, or the commands of one."),
        spec("acl|deluser", -3, ADMIN, "username [username ...]",
            "Removes users and closes their connections; answers how many there were."),
        Spec { since: "7.0.0", ..spec("acl|dryrun", -4, ADMIN, "username command [arg [arg ...]]",
            "Whether a user may execute this; it is not executed.") },
        spec("acl|genpass", -2, ALWAYS, "[bits]",
            "A random password: 256 bits in hexadecimal, or as many as asked for."),
        spec("acl|getuser", 3, ADMIN, "username",
            "A user's flags, SHA-256 of passwords, and rules."),
        help_row("acl|help", "server", "6.0.0"),
        spec("acl|list", 2, ADMIN, "", "All users with their rules, as the file has them."),
        spec("acl|load", 2, ADMIN, "",
            "Reads the users from the file (security.acl_file): all of them, or, if one is wrong, \
             none."),
        spec("acl|log", -2, ADMIN, "[count|RESET]", "What was refused to whom, the newest first."),
        spec("acl|save", 2, ADMIN, "",
            "Writes the users into the file. When it answers, the file is safe on the disk."),
        spec("acl|setuser", -3, ADMIN, "username [rule [rule ...]]",
            "Makes or changes a user, by all of the rules or none. Redis's rules, and $name for \
             the space, view or action of that name (see docs/security.md)."),
        spec("acl|users", 2, ADMIN, "", "The names of all users."),
        spec("acl|whoami", 2, ALWAYS, "", "The name of this connection's user."),
    ],
    ..spec("acl", -2, 0, "", "A container for commands about users.")
};

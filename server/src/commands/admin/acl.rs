//! ACL commands; users and rules are in [`node::acl`].

use crate::commands::call::Call;
use crate::commands::command::{Command, Group, Run::Once};
use crate::commands::connection::{client_admin, tracking};
use crate::commands::run::select;
use dataset::clock::unix_us;
use node::acl::{CATEGORIES, MODULE_CATEGORIES, Request, categories};
use node::command::error::{Refusal, refuse};
use node::command::spec::{ALWAYS, NO_KEYS, Outcome, Spec, flag};
use node::command::table::{find, with_numbers};
use resp::Reply;

const SERVER: Group = Group::new("server", "6.0.0", NO_KEYS);
const ADMIN: u32 = ALWAYS | flag::ADMIN;

#[rustfmt::skip]
pub(crate) const ACL: Command = SERVER.container("acl", "A container for commands about users.", &[
    SERVER.row("acl|cat", -2, ALWAYS, "[categoryname]", Once(cat),
        "Lists the ACL categories, or the commands of one category."),
    SERVER.row("acl|deluser", -3, ADMIN, "username [username ...]", Once(deluser),
        "Deletes users and closes their connections. Returns the number of deleted users.")
        .linear("connections"),
    SERVER.row("acl|dryrun", -4, ADMIN, "username command [arg [arg ...]]", Once(dryrun),
        "Checks whether a user may execute a command, without executing it.").since("7.0.0"),
    SERVER.row("acl|genpass", -2, ALWAYS, "[bits]", Once(genpass),
        "Returns a random password in hexadecimal, of 256 bits by default."),
    SERVER.row("acl|getuser", 3, ADMIN, "username", Once(getuser),
        "Returns a user's flags, password hashes (SHA-256) and rules.").linear("rules"),
    SERVER.help("acl|help"),
    SERVER.row("acl|list", 2, ADMIN, "", Once(list),
        "Lists all users with their rules, in the format of the ACL file.").linear("users"),
    SERVER.row("acl|load", 2, ADMIN, "", Once(load),
        "Reloads the users from the ACL file (security.acl_file). If the file has an invalid \
         user, keeps the current users.").linear("users"),
    SERVER.row("acl|log", -2, ADMIN, "[count|RESET]", Once(log),
        "Lists the requests that the ACL denied, newest first. RESET clears the list.")
        .linear("entries"),
    SERVER.row("acl|save", 2, ADMIN, "", Once(save),
        "Writes the users to the ACL file. Replies after the file is synced to disk.")
        .linear("users"),
    SERVER.row("acl|setuser", -3, ADMIN, "username [rule [rule ...]]", Once(setuser),
        "Creates or changes a user. Applies all of the rules or none. The rules are those of \
         Redis, and $name for the space, view or action of that name (see docs/security.md).")
        .linear("rules"),
    SERVER.row("acl|users", 2, ADMIN, "", Once(users), "Lists the names of all users.")
                                                       .linear("users"),
    SERVER.row("acl|whoami", 2, ALWAYS, "", Once(whoami), "Returns the user name of this \
                                                           connection."),
]);

fn text(bytes: &[u8]) -> Result<&str, Refusal> {
    std::str::from_utf8(bytes).map_err(|_| Refusal::SYNTAX)
}

fn cat(call: &mut Call<'_>) -> Outcome {
    let wanted = call.args.at(2).to_ascii_lowercase();
    match call.args.len() {
        2 => {
            call.reply.array(CATEGORIES.len());
            CATEGORIES.iter().for_each(|name| call.reply.bulk(name.as_bytes()));
        }
        3 if CATEGORIES.iter().chain(&MODULE_CATEGORIES).any(|c| c.as_bytes() == wanted) => {
            let member = |spec: &&Spec| categories(spec).iter().any(|c| c.as_bytes() == wanted);
            let found: Vec<&Spec> = with_numbers().map(|(_, spec)| spec).filter(member).collect();
            call.reply.array(found.len());
            found.iter().for_each(|spec| call.reply.bulk(spec.name.as_bytes()));
        }
        3 => {
            return Err(refuse!(
                "ERR Unknown category '{}'",
                node::command::error::Printable(call.args.at(2))
            ));
        }
        _ => return Err(call.wrong_subcommand()),
    }
    Ok(())
}

fn deluser(call: &mut Call<'_>) -> Outcome {
    let names = call.args.from(2).iter().map(text).collect::<Result<Vec<&str>, _>>()?;
    let deleted = call.node.acl.delete(&names).map_err(|e| refuse!("ERR {e}"))?;
    call.node.settings.touch();
    tracing::info!("ACL DELUSER by {}: deleted {deleted} users", call.session.client.peer);
    client_admin::disconnect_named_users(call, &names);
    call.reply.count(deleted);
    Ok(())
}

fn dryrun(call: &mut Call<'_>) -> Outcome {
    let name = call.args.at(2);
    let Some(user) = std::str::from_utf8(name).ok().and_then(|name| call.node.acl.get(name)) else {
        return Err(refuse!("ERR User '{}' not found", node::command::error::Printable(name)));
    };
    let args = call.args.from(3);
    let not_found =
        || refuse!("ERR Command '{}' not found", node::command::error::Printable(args.at(0)));
    let Some((number, spec)) = find(args.at(0)) else { return Err(not_found()) };
    if !spec.subcommands.is_empty() && !spec.has(flag::NAMED) && !spec.knows(args.at(1)) {
        return Err(not_found());
    }
    let (spec, sub) = select(spec, args)?;
    let request = Request { spec, number: node::command::table::bit_of(number, sub), args };
    match call.node.acl.dry_run(&user, &request, call.node.loaded()) {
        None => call.reply.ok(),
        Some(why) => call.reply.bulk(why.as_bytes()),
    }
    Ok(())
}

fn genpass(call: &mut Call<'_>) -> Outcome {
    let bits = match call.args.len() {
        2 => 256,
        3 => crate::commands::call::integer(call.args.at(2))?,
        _ => return Err(call.wrong_subcommand()),
    };
    let Some(bits) = usize::try_from(bits).ok().filter(|bits| (1..=4096).contains(bits)) else {
        return Err(refuse!(
            "ERR ACL GENPASS argument must be the number of bits for the output password, a \
             positive number up to 4096"
        ));
    };
    let mut random = [0u8; 512];
    let mut filled = 0;
    while filled < random.len() {
        filled +=
            rustix::rand::getrandom(&mut random[filled..], rustix::rand::GetRandomFlags::empty())
                .map_err(|e| refuse!("ERR cannot read random bytes from the system: {e}"))?;
    }
    // A hexadecimal digit holds four bits; round up to whole digits.
    let digits: String = random
        .iter()
        .flat_map(|b| [b >> 4, b & 15])
        .take(bits.div_ceil(4))
        .map(|d| char::from(b"0123456789abcdef"[usize::from(d)]))
        .collect();
    call.reply.bulk(digits.as_bytes());
    Ok(())
}

fn getuser(call: &mut Call<'_>) -> Outcome {
    let user = std::str::from_utf8(call.args.at(2)).ok().and_then(|name| call.node.acl.get(name));
    let reply = &mut call.reply;
    let Some(user) = user else {
        reply.null();
        return Ok(());
    };
    reply.map(6);
    reply.bulk(b"flags");
    reply.set(user.flags().len());
    user.flags().iter().for_each(|flag| reply.bulk(flag.as_bytes()));
    reply.bulk(b"passwords");
    reply.array(user.passwords().len());
    user.passwords().for_each(|password| reply.bulk(password.as_bytes()));
    let rules = |reply: &mut Reply<'_>, selector: &node::acl::Selector| {
        for (name, rules) in [
            ("commands", selector.command_rules()),
            ("keys", selector.key_rules()),
            ("channels", selector.channel_rules()),
        ] {
            reply.bulk(name.as_bytes());
            reply.bulk(rules.as_bytes());
        }
    };
    let (own, others) = user.selectors();
    rules(reply, own);
    reply.bulk(b"selectors");
    reply.array(others.len());
    for other in others {
        reply.map(3);
        rules(reply, other);
    }
    Ok(())
}

fn list(call: &mut Call<'_>) -> Outcome {
    let users = call.node.acl.all();
    call.reply.array(users.len());
    users.iter().for_each(|user| call.reply.bulk(format!("user {}", user.line()).as_bytes()));
    Ok(())
}

fn load(call: &mut Call<'_>) -> Outcome {
    // Do not close the caller's connection here, because it must receive its reply first. The
    // connection checks its user again before the next request.
    let own = call.session.client.id;
    call.answer_later(move |node, reply| {
        let before = node.acl.all();
        node.acl.load(&node.config().security).map_err(|e| refuse!("ERR {e}"))?;
        // Close idle connections of removed users. Active connections of removed users close at
        // their next request.
        node.settings.touch();
        let others = || node.clients.list().into_iter().filter(|client| client.id != own);
        for client in others() {
            let user = client.names.lock().user.clone();
            if node.acl.get(&user).is_none() {
                client.kill();
            }
        }
        let denied = client_admin::denied_listeners(&node, &before);
        denied.iter().filter(|client| client.id != own).for_each(|client| client.kill());
        tracking::end_denied(&node);
        tracing::info!("ACL LOAD: reloaded all users");
        reply.ok();
        Ok(())
    })
}

fn save(call: &mut Call<'_>) -> Outcome {
    call.answer_later(|node, reply| {
        node.acl.save(&node.config().security).map_err(|e| refuse!("ERR {e}"))?;
        reply.ok();
        Ok(())
    })
}

fn log(call: &mut Call<'_>) -> Outcome {
    let mut most = 10;
    match call.args.len() {
        2 => {}
        3 if call.args.at(2).eq_ignore_ascii_case(b"reset") => {
            call.node.acl.log.lock().clear();
            call.reply.ok();
            return Ok(());
        }
        3 => most = usize::try_from(crate::commands::call::integer(call.args.at(2))?).unwrap_or(0),
        _ => return Err(call.wrong_subcommand()),
    }
    let log = call.node.acl.log.lock();
    let entries = log.newest(most);
    let reply = &mut call.reply;
    reply.array(entries.len());
    let now = unix_us();
    for entry in entries {
        reply.map(10);
        reply.bulk(b"count");
        reply.int(entry.count as i64);
        for (name, value) in [
            (&b"reason"[..], entry.reason.name().as_bytes()),
            (b"context", b"toplevel"),
            (b"object", &entry.object),
            (b"username", &entry.user),
        ] {
            reply.bulk(name);
            reply.bulk(value);
        }
        reply.bulk(b"age-seconds");
        reply.double(now.saturating_sub(entry.first_us) as f64 / 1e6);
        reply.bulk(b"client-info");
        reply.bulk(&entry.client);
        reply.bulk(b"entry-id");
        reply.int(entry.number as i64);
        reply.bulk(b"timestamp-created");
        reply.int((entry.first_us / 1000) as i64);
        reply.bulk(b"timestamp-last-updated");
        reply.int((entry.last_us / 1000) as i64);
    }
    Ok(())
}

fn setuser(call: &mut Call<'_>) -> Outcome {
    let name = text(call.args.at(2))?;
    let rules = call.args.from(3).iter().map(text).collect::<Result<Vec<&str>, _>>()?;
    let most = call.node.config().security.max_users;
    let before = call.node.acl.get(name);
    call.node.acl.set_user(name, &rules, most).map_err(|e| refuse!("ERR {e}"))?;
    call.node.settings.touch();
    // Close the connections of clients with subscriptions that the new rules no longer allow.
    for client in client_admin::denied_listeners(&call.node, before.as_slice()) {
        client_admin::end(call, &client);
    }
    tracking::end_denied(&call.node);
    tracing::info!("ACL SETUSER {name} by {}", call.session.client.peer);
    call.reply.ok();
    Ok(())
}

fn users(call: &mut Call<'_>) -> Outcome {
    let users = call.node.acl.all();
    call.reply.array(users.len());
    users.iter().for_each(|user| call.reply.bulk(user.name().as_bytes()));
    Ok(())
}

fn whoami(call: &mut Call<'_>) -> Outcome {
    match &call.session.access.user {
        Some(user) => call.reply.bulk(user.name().as_bytes()),
        None => call.reply.null(),
    }
    Ok(())
}

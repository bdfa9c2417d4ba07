//! CONFIG: settings at run time ([`node::runtime::settings`]).

use crate::commands::call::Call;
use crate::commands::command::{Command, Group, Run::Once};
use node::command::error::{Refusal, refuse};
use node::command::spec::{ALWAYS, NO_KEYS, Outcome, flag};
use node::config::Config;
use node::runtime::{glob, settings};

const SERVER: Group = Group::new("server", "2.0.0", NO_KEYS);
const ADMIN: u32 = ALWAYS | flag::ADMIN;

#[rustfmt::skip]
pub(crate) const CONFIG: Command =
    SERVER.container("config", "A container for commands about the configuration.", &[
        SERVER.row("config|get", -3, ADMIN, "parameter [parameter ...]", Once(get),
            "Returns the settings whose names match the patterns. Tidemark's settings are named by \
             section and key (server.port). The Redis names that common tools read are also \
             supported. Passwords are shown only to \
             users with all permissions.").linear("settings"),
        SERVER.help("config|help").since("5.0.0"),
        SERVER.row("config|resetstat", 2, ADMIN, "", Once(resetstat),
            "Resets the counters of INFO stats, commandstats, latencystats and errorstats."),
        SERVER.row("config|rewrite", 2, ADMIN, "", Once(rewrite),
            "Writes changed values to the configuration file: settings, users, and the fields of \
             counter spaces after TM.SPACE ALTER. The rest of the file stays unchanged. A new node \
             can start with this file. Replies after the file is synced to disk.")
            .since("2.8.0").linear("settings"),
        SERVER.row("config|set", -4, ADMIN, "parameter value [parameter value ...]", Once(set),
            "Changes one or more settings atomically at run time. An asterisk in the configuration \
             file marks the settings that can be changed. client-output-buffer-limit sets \
             max_output_buffer (normal) and max_push_buffer (pubsub). Redis settings without an \
             equivalent in Tidemark (such as hz, maxmemory-samples and hash-max-listpack-entries) \
             accept any value and have no effect.").linear("settings")
            .tips(&["request_policy:all_nodes", "response_policy:all_succeeded"]),
    ]);

/// Maximum length in bytes of a name or value in CONFIG SET.
const MAX_LENGTH: usize = 64 << 10;
const MAX_ARGS: usize = 1024;
/// Maximum total length in bytes of the patterns of CONFIG GET. Each pattern is matched against
/// every setting's name.
const MAX_PATTERNS: usize = 8 << 10;

fn get(call: &mut Call<'_>) -> Outcome {
    let patterns = call.args.from(2);
    if patterns.len() > MAX_ARGS || patterns.iter().map(<[u8]>::len).sum::<usize>() > MAX_PATTERNS {
        return Err(refuse!(
            "ERR at most {MAX_ARGS} patterns with {MAX_PATTERNS} bytes in total are allowed"
        ));
    }
    // Only a user with all permissions sees passwords, because a password can give other users more
    // permissions.
    let has_all_permissions =
        call.session.access.user.as_ref().is_some_and(|user| user.has_all_permissions());
    let mut config = Config::clone(&call.node.config());
    config.describe(&call.node.engines().catalogue());
    let mut found =
        settings::list(&call.node.settings, &config, call.node.port(), has_all_permissions);
    found.retain(|(name, _)| patterns.iter().any(|p| glob::matches(p, name.as_bytes(), true)));
    call.reply.map(found.len());
    for (name, value) in found {
        call.reply.bulk(name.as_bytes());
        call.reply.bulk(value.as_bytes());
    }
    Ok(())
}

fn set(call: &mut Call<'_>) -> Outcome {
    let args = call.args.from(2);
    if !args.len().is_multiple_of(2) {
        return Err(Refusal::SYNTAX);
    }
    if args.len() > MAX_ARGS || args.iter().any(|a| a.len() > MAX_LENGTH) {
        return Err(refuse!("ERR too many arguments, or an argument is too long"));
    }
    let text = |index| String::from_utf8_lossy(args.at(index)).into_owned();
    let pairs: Vec<(String, String)> =
        (0..args.len()).step_by(2).map(|at| (text(at), text(at + 1))).collect();
    let node = call.node;
    // Setting a file name to the same value reloads the certificates.
    let certificates = pairs.iter().any(|(name, _)| name.to_ascii_lowercase().starts_with("tls"));
    settings::set(&node.settings, &pairs, node.port(), |before, after| {
        node.apply(before, after, certificates)
    })
    .map_err(|e| refuse!("{e}"))?;
    for (name, _) in &pairs {
        tracing::info!(
            "CONFIG SET {} by {}",
            node::command::error::Printable(name.as_bytes()),
            call.session.client.peer
        );
    }
    call.reply.ok();
    Ok(())
}

fn rewrite(call: &mut Call<'_>) -> Outcome {
    call.answer_later(|node, reply| {
        let complete = |config: &mut Config| {
            config.describe(&node.current.catalogue());
            if config.security.acl_file.is_empty() {
                config.security.users = node.acl.lines(&config.security);
            }
        };
        node.settings.rewrite(complete).map_err(|e| refuse!("{e}"))?;
        tracing::info!("CONFIG REWRITE: wrote the configuration file");
        reply.ok();
        Ok(())
    })
}

fn resetstat(call: &mut Call<'_>) -> Outcome {
    call.node.reset_totals();
    call.reply.ok();
    Ok(())
}

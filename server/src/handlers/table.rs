//! The handlers of all commands, by the numbers that the command table gives.

use super::{admin, cluster, counter, feed, flags, redis, schema, stream};
use crate::handlers::call::Call;
use crate::handlers::items::Answered;
use node::command::spec::Outcome;
use node::command::table::{bits, with_numbers};
use std::collections::HashMap;
use std::sync::LazyLock;

/// What a command does. It writes one reply, or returns a refusal: then whatever it wrote is
/// forgotten and the refusal sent.
pub(crate) type Handler = fn(&mut Call<'_>) -> Outcome;
/// The handler of a command over many items, which may yield the worker (`items.rs`).
pub(crate) type LongHandler = fn(&mut Call<'_>) -> Answered;

/// A command's handler.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    Once(Handler),
    Long(LongHandler),
}

/// What each family has for its commands and subcommands.
const FAMILIES: &[&[(&str, Handler)]] = &[
    feed::page::RUN,
    feed::weibo::RUN,
    counter::cnt::RUN,
    counter::hash::RUN,
    counter::string::RUN,
    flags::members::RUN,
    flags::set::RUN,
    flags::bloom::RUN,
    flags::cuckoo::RUN,
    stream::read::RUN,
    stream::range::RUN,
    stream::info::RUN,
    stream::group::RUN,
    stream::claim::RUN,
    redis::keys::RUN,
    redis::client::RUN,
    redis::client_admin::RUN,
    redis::pubsub::RUN,
    redis::restore::RUN,
    redis::tracking::RUN,
    redis::transaction::RUN,
    schema::changes::RUN,
    schema::spaces::RUN,
    schema::views::RUN,
    admin::acl::RUN,
    admin::backup::RUN,
    admin::command::RUN,
    admin::config::RUN,
    admin::diagnostics::RUN,
    admin::ingest::RUN,
    admin::server::RUN,
    cluster::controller::RUN,
    cluster::replication::RUN,
    cluster::topology::RUN,
];

const LONG: &[&[(&str, LongHandler)]] = &[
    feed::forget::LONG,
    feed::page::LONG,
    counter::cnt::LONG,
    counter::string::LONG,
    flags::phantom::LONG,
    flags::set::LONG,
    flags::bloom::LONG,
    flags::cuckoo::LONG,
    redis::keys::LONG,
];

static HANDLERS: LazyLock<Vec<Run>> = LazyLock::new(|| {
    let once = FAMILIES.iter().copied().flatten().map(|&(name, run)| (name, Run::Once(run)));
    let long = LONG.iter().copied().flatten().map(|&(name, run)| (name, Run::Long(run)));
    let rows: Vec<(&str, Run)> = once.chain(long).collect();
    let named: HashMap<&str, Run> = rows.iter().copied().collect();
    assert_eq!((named.len(), named.len()), (rows.len(), bits()), "one handler for each command");
    let of = |name: &str| *named.get(name).unwrap_or_else(|| panic!("{name} has no handler"));
    with_numbers().map(|(_, spec)| of(spec.name)).collect()
});

/// The handler of the command or subcommand with this number among all of them
/// ([`bit_of`](node::command::table::bit_of)).
#[inline]
pub(crate) fn handler(number: usize) -> Run {
    HANDLERS[number]
}

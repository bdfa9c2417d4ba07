//! The rows of `server/src/handlers/redis/pubsub.rs`.

use crate::command::spec::{ALWAYS, NO_KEYS, Spec, flag, help_row, rows_of};

pub(crate) const LISTEN: u32 = ALWAYS | flag::PUBSUB | flag::LISTENER;

rows_of!("pubsub", NO_KEYS);

#[rustfmt::skip]
pub(crate) const TABLE: &[Spec] = &[
    spec("subscribe", -2, LISTEN, "2.0.0", "channel [channel ...]", "Listens to channels."),
    spec("unsubscribe", -1, LISTEN, "2.0.0", "[channel [channel ...]]",
        "Listens no more to these channels, or to any."),
    spec("psubscribe", -2, LISTEN, "2.0.0", "pattern [pattern ...]",
        "Listens to all channels that match a pattern."),
    spec("punsubscribe", -1, LISTEN, "2.0.0", "[pattern [pattern ...]]",
        "Listens no more to these patterns, or to any."),
    spec("ssubscribe", -2, LISTEN, "7.0.0", "shardchannel [shardchannel ...]",
        "Listens to shard channels."),
    spec("sunsubscribe", -1, LISTEN, "7.0.0", "[shardchannel [shardchannel ...]]",
        "Listens no more to these shard channels, or to any."),
    spec("publish", 3,
        flag::PUBSUB | flag::LOADING | flag::STALE | flag::FAST | flag::MAY_REPLICATE, "2.0.0",
        "channel message",
        "Sends a message to the channel's subscribers on this server; answers how many there are."),
    spec("spublish", 3,
        flag::PUBSUB | flag::LOADING | flag::STALE | flag::FAST | flag::MAY_REPLICATE, "7.0.0",
        "shardchannel message",
        "The same for a shard channel."),
    Spec {
        subcommands: &[
            spec("pubsub|channels", -2, ALWAYS | flag::PUBSUB, "2.8.0", "[pattern]",
                "Channels with listeners."),
            help_row("pubsub|help", "pubsub", "6.2.0"),
            spec("pubsub|numpat", 2, ALWAYS | flag::PUBSUB, "2.8.0", "",
                "How many patterns have listeners."),
            spec("pubsub|numsub", -2, ALWAYS | flag::PUBSUB, "2.8.0", "[channel [channel ...]]",
                "Per channel how many listen to it by name."),
            spec("pubsub|shardchannels", -2, ALWAYS | flag::PUBSUB, "7.0.0", "[pattern]",
                "Shard channels with listeners."),
            spec("pubsub|shardnumsub", -2, ALWAYS | flag::PUBSUB, "7.0.0",
                "[shardchannel [shardchannel ...]]", "Per shard channel how many listen to it."),
        ],
        ..spec("pubsub", -2, 0, "2.8.0", "", "A container for commands about channels.")
    },
];

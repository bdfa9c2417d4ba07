"""Intended differences between the replies of Tidemark and Redis, with reasons. An unused reason fails the test."""

import re

# Patterns of the call (words joined by spaces) and of our reply, and the reason. The first match counts.
PURPOSE = []


def purpose(reason, calls, reply=""):
    PURPOSE.append((re.compile(calls, re.IGNORECASE), re.compile(reply), reason))


purpose("a counter is a number, not a string", "(append|setrange) .*", "is not supported: a counter")
purpose("a counter is an integer", "h?incrbyfloat .*", "counters are integers")
purpose("a counter's value is an integer", "(set|setnx|getset|mset|msetnx|hset|hsetnx|hmset) .*", "is not an integer")
purpose("nothing expires", "((p?(expire|expireat|setex))|set|getex) .*", "do not expire")
purpose("nothing expires", "getex .* EX 1 EX 1", "syntax error")  # Redis takes EX twice
purpose("a key is derived from its id", "(rename|renamenx|copy|move) .*", "derived from its id")
purpose("a filter cannot tell which members one id has", "dump .*", "needs a ledger")
purpose("a row has the fields of its schema, and a version that old servers restore", "dump .*")
purpose("nothing expires", "restore(-asking)? .*", "do not expire")
purpose("pairs are added to those that are there", "restore(-asking)? liked:.*")
purpose("an error of a copy names the key", "restore(-asking)? .*", r"\(key .*\)")
purpose("what is there is deleted row by row", "flush(all|db).*", "is not supported")
purpose("a filter cannot tell which members one id has", "s(card|members|pop|randmember|scan|inter|intercard|union|diff|interstore|unionstore|diffstore) .*",
        "a filter cannot count or list")
purpose("what a key holds follows from its name, also before anything is there", ".*", "^WRONGTYPE")
purpose("a key must fit a pattern of a space", ".*", "ERR Invalid key")
purpose("a row has the fields of its schema", "(hset|hmset|hincrby|hsetnx) .*", "ERR No schema field")
purpose("streams have the arguments that tm:changes takes", "arguments of x.*")
purpose("no key but tm:changes is a stream: what it is comes before the rest of the request",
        "x(read|readgroup|pending|ack|info stream)( .*)?")
purpose("the pairs of an id are a set and a bitmap", "getbit liked:.*")
purpose("an offset is the number of a member, up to 2^64-1", "setbit .*", "ERR bit is not an integer")
purpose("the type of an argument follows from its name", "arguments of setbit")
purpose("keys of rows are listed; pairs cannot be", "(keys|scan|randomkey|dbsize)( .*)?")
purpose("a cursor is a decimal number, as SCAN gives it", "[hs]?scan .*", "ERR invalid cursor")
purpose("members come in an order of ours", "(smembers|sscan) liked:.*")
purpose("the pairs of an id are a set, whether there are any or not", "(type|object encoding) liked:.*")
purpose("how values are packed", "object (encoding|refcount) .*")
purpose("use of keys is not tracked", "object (idletime|freq) .*", "not tracked")
purpose("bytes of the row in a full table", "memory usage .*")
purpose("texts of HELP are ours", "[a-z]+ help", "Subcommands are:|<subcommand>")
purpose("there is one database", "select .*", "ERR DB index is out of range")
purpose("our commands, and what we say of them", "(command( (docs|info|list|count).*)?)|acl cat( .*)?")
purpose("in our words", "(memory|latency) (doctor|malloc-stats)|debug (help|nope)")
purpose("one call in 64 of cheap commands is timed, and stands for the others", "latency histogram")
purpose("use of keys is not tracked", "object freq .*", "not tracked|LFU")
purpose("replicas are told to whom they may listen in our words", "(replicaof|failover) .*", "^ERR")

purpose("entries have numbers and times, as in Redis 7.2", "acl log.*", "entry-id")
purpose("an error does not repeat a password", "acl setuser u <missing", "'<'")
purpose("settings are told by their own names", "config get TIMEOUT")
purpose("there is one database", "config get databases")
purpose("which values a setting takes is said in our words", "config set .*", "invalid value|must be at least|must be a time")
purpose("ports do not change while the server runs", "config set port .*", "immutable")
purpose("the commands of RedisBloom are built in", "module list|hello( .*)?", "bf")
purpose("this is a cluster of one shard for clients of clusters, and standalone for all others", "(cluster|readonly|readwrite|asking)( .*)?")
purpose("graphs are for tools", "latency graph .*", "unknown subcommand")
purpose("Redis has it switched off", "debug sleep.*")
purpose("fewer than none cannot be waited for", "wait -1 .*", "out of range")

# Commands whose COMMAND DOCS has other arguments, with the reason.
OTHER_ARGUMENTS = {
    "set": "nothing expires",
    "getex": "nothing expires",
    "hscan": "NOVALUES of Redis 7.4",
    "client|kill": "as in Redis 7.2, MAXAGE as in 7.4",
    "command|getkeys": "Redis 7.0 forgot them",
    "command|getkeysandflags": "Redis 7.0 forgot them",
    "replconf": "Redis says nothing of it",
    "replicaof": "FORCE gives up what a replica has",
    "slaveof": "FORCE gives up what a replica has",
}

# Commands with other ACL categories (except @fast and @slow, which depend on the implementation), with the reason.
OTHER_CATEGORIES = {
    "client": "a container is in the category of its commands",
    "xgroup": "a container is in the category of its commands",
    "xinfo": "a container is in the category of its commands",
    "object": "a container is in the category of its commands",
    "pubsub": "a container is in the category of its commands",
    "pubsub|help": "a container is in the category of its commands",
    "function": "a container is in the category of its commands",
    "script": "a container is in the category of its commands",
    "debug": "the container alone does nothing",
    "getex": "it changes nothing here",
}

# Names of missing values, because the feature does not exist here: forks, scripts, functions, evictions, expiry, allocator pools, clock internals, I/O
# threads, Redis's build, its replication backlog (here the log), and values whose counting would slow down each command.
LACKING = re.compile(
    r"mem_fragmentation_.*|redis_(git_sha1|git_dirty|build_id)|gcc_version|atomicvar_api|monotonic_clock|(configured_)?hz|lru_clock|clients_in_timeout_table"
    r"|used_memory_(startup|lua|lua_human|vm_.*|scripts.*|functions)|number_of_.*|allocator_.*|rss_overhead_.*|mem_(not_counted_for_evict|"
    r"replication_backlog|total_replication_buffers|clients_slaves|cluster_links|aof_buffer)|active_defrag_.*|lazyfreed_objects"
    r"|current_.*|rdb_(current_bgsave_time_sec|saves|last_load_.*)|aof_(rewrites.*|last_cow_size)|module_fork_.*"
    r"|total_(net_repl_.*|eviction_.*|active_defrag_time|reads_processed|writes_processed)|instantaneous_.*_repl_kbps|sync_partial_err"
    r"|expired_(stale_perc|time_cap_reached_count)|expire_cycle_cpu_milliseconds|keyspace_(hits|misses)|migrate_cached_sockets"
    r"|slave_expires_tracked_keys|tracking_total_(items|prefixes)|dump_payload_sanitizations|io_threaded_.*|reply_buffer_.*"
    r"|master_replid2|repl_backlog_.*|used_cpu_(sys|user)_main_thread|cmdstat_.*|latency_percentiles_.*|errorstat_.*"
    r"|startup.allocated|replication.backlog|clients.(slaves|normal)|cluster.links|aof.buffer|(lua|functions).caches|db.0|overhead.(hashtable|db).*"
    r"|(dataset|peak).percentage|allocator.*|rss-overhead.*|fragmentation.*|count|main|expires"
)

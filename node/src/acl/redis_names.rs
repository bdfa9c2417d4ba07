//! Names of Redis 8 that ACL rules may use although this server does not have these commands:
//! commands, subcommands, commands of bundled modules, and their categories.
//!
//! Rules written for Redis (`-eval`, `-script|load`, `-@search`) are accepted and stored unchanged,
//! so that users and ACL files can be migrated. Such rules have no effect. A name that Redis does
//! not have is refused.

use std::collections::HashSet;
use std::sync::LazyLock;

/// Categories of module commands. Module categories with commands of this server are in
/// [`CATEGORIES`](crate::acl::CATEGORIES).
pub const MODULE_CATEGORIES: [&str; 6] = ["search", "tdigest", "cms", "topk", "timeseries", "json"];

/// Commands, and subcommands as `command|subcommand`.
const NAMES: &str = "
acl acl|cat acl|deluser acl|dryrun acl|genpass acl|getuser acl|help acl|list acl|load
acl|log acl|save acl|setuser acl|users acl|whoami append asking auth bgrewriteaof bgsave
bitcount bitfield bitfield_ro bitop bitpos blmove blmpop blpop brpop brpoplpush bzmpop
bzpopmax bzpopmin client client|caching client|getname client|getredir client|help client|id
client|info client|kill client|list client|no-evict client|no-touch client|pause
client|reply client|setinfo client|setname client|tracking client|trackinginfo
client|unblock client|unpause cluster cluster|addslots cluster|addslotsrange
cluster|bumpepoch cluster|count-failure-reports cluster|countkeysinslot cluster|delslots
cluster|delslotsrange cluster|failover cluster|flushslots cluster|forget
cluster|getkeysinslot cluster|help cluster|info cluster|keyslot cluster|links cluster|meet
cluster|migration cluster|myid cluster|myshardid cluster|nodes cluster|replicas
cluster|replicate cluster|reset cluster|saveconfig cluster|set-config-epoch cluster|setslot
cluster|shards cluster|slaves cluster|slot-stats cluster|slots cluster|syncslots command
command|count command|docs command|getkeys command|getkeysandflags command|help command|info
command|list config config|get config|help config|resetstat config|rewrite config|set copy
dbsize debug decr decrby del delex digest discard dump echo eval eval_ro evalsha evalsha_ro
exec exists expire expireat expiretime failover fcall fcall_ro flushall flushdb function
function|delete function|dump function|flush function|help function|kill function|list
function|load function|restore function|stats geoadd geodist geohash geopos georadius
georadius_ro georadiusbymember georadiusbymember_ro geosearch geosearchstore get getbit
getdel getex getrange getset hdel hello hexists hexpire hexpireat hexpiretime hget hgetall
hgetdel hgetex hincrby hincrbyfloat hkeys hlen hmget hmset hotkeys hotkeys|get hotkeys|reset
hotkeys|start hotkeys|stop hpersist hpexpire hpexpireat hpexpiretime hpttl hrandfield hscan
hset hsetex hsetnx hstrlen httl hvals incr incrby incrbyfloat info keys lastsave latency
latency|doctor latency|graph latency|help latency|histogram latency|history latency|latest
latency|reset lcs lindex linsert llen lmove lmpop lolwut lpop lpos lpush lpushx lrange lrem
lset ltrim memory memory|doctor memory|help memory|malloc-stats memory|purge memory|stats
memory|usage mget migrate module module|help module|list module|load module|loadex
module|unload monitor move mset msetex msetnx multi object object|encoding object|freq
object|help object|idletime object|refcount persist pexpire pexpireat pexpiretime pfadd
pfcount pfdebug pfmerge pfselftest ping psetex psubscribe psync pttl publish pubsub
pubsub|channels pubsub|help pubsub|numpat pubsub|numsub pubsub|shardchannels
pubsub|shardnumsub punsubscribe quit randomkey readonly readwrite rename renamenx replconf
replicaof reset restore restore-asking role rpop rpoplpush rpush rpushx sadd save scan scard
script script|debug script|exists script|flush script|help script|kill script|load sdiff
sdiffstore select set setbit setex setnx setrange shutdown sinter sintercard sinterstore
sismember slaveof slowlog slowlog|get slowlog|help slowlog|len slowlog|reset smembers
smismember smove sort sort_ro spop spublish srandmember srem sscan ssubscribe strlen
subscribe substr sunion sunionstore sunsubscribe swapdb sync time touch ttl type unlink
unsubscribe unwatch vadd vcard vdim vemb vgetattr vinfo vismember vlinks vrandmember vrange
vrem vsetattr vsim wait waitaof watch xack xackdel xadd xautoclaim xcfgset xclaim xdel
xdelex xgroup xgroup|create xgroup|createconsumer xgroup|delconsumer xgroup|destroy
xgroup|help xgroup|setid xinfo xinfo|consumers xinfo|groups xinfo|help xinfo|stream xlen
xpending xrange xread xreadgroup xrevrange xsetid xtrim zadd zcard zcount zdiff zdiffstore
zincrby zinter zintercard zinterstore zlexcount zmpop zmscore zpopmax zpopmin zrandmember
zrange zrangebylex zrangebyscore zrangestore zrank zrem zremrangebylex zremrangebyrank
zremrangebyscore zrevrange zrevrangebylex zrevrangebyscore zrevrank zscan zscore zunion
zunionstore
";

/// Commands of Redis 8's modules.
const MODULE_NAMES: &str = "
bf.add bf.card bf.debug bf.exists bf.info bf.insert bf.loadchunk bf.madd bf.mexists
bf.reserve bf.scandump cf.add cf.addnx cf.compact cf.count cf.debug cf.del cf.exists cf.info
cf.insert cf.insertnx cf.loadchunk cf.mexists cf.reserve cf.scandump cms.incrby cms.info
cms.initbydim cms.initbyprob cms.merge cms.query ft._aliasaddifnx ft._aliasdelifx
ft._alterifnx ft._createifnx ft._dropifx ft._list ft.add ft.aggregate ft.aliasadd
ft.aliasdel ft.aliasupdate ft.alter ft.config ft.create ft.cursor ft.debug ft.del ft.dictadd
ft.dictdel ft.dictdump ft.drop ft.dropindex ft.explain ft.explaincli ft.get ft.hybrid
ft.info ft.mget ft.profile ft.safeadd ft.search ft.spellcheck ft.sugadd ft.sugdel ft.sugget
ft.suglen ft.syndump ft.synupdate ft.tagvals json.arrappend json.arrindex json.arrinsert
json.arrlen json.arrpop json.arrtrim json.clear json.debug json.del json.forget json.get
json.merge json.mget json.mset json.numincrby json.nummultby json.numpowby json.objkeys
json.objlen json.resp json.set json.strappend json.strlen json.toggle json.type tdigest.add
tdigest.byrank tdigest.byrevrank tdigest.cdf tdigest.create tdigest.info tdigest.max
tdigest.merge tdigest.min tdigest.quantile tdigest.rank tdigest.reset tdigest.revrank
tdigest.trimmed_mean topk.add topk.count topk.incrby topk.info topk.list topk.query
topk.reserve ts.add ts.alter ts.create ts.createrule ts.decrby ts.del ts.deleterule ts.get
ts.incrby ts.info ts.madd ts.mget ts.mrange ts.mrevrange ts.queryindex ts.range ts.revrange
json.debug|help json.debug|memory ft.config|get ft.config|set ft.config|help ft.cursor|del
ft.cursor|read
";

static KNOWN: LazyLock<HashSet<&str>> = LazyLock::new(|| {
    NAMES.split_ascii_whitespace().chain(MODULE_NAMES.split_ascii_whitespace()).collect()
});
static CONTAINERS: LazyLock<HashSet<&str>> =
    LazyLock::new(|| KNOWN.iter().filter_map(|name| Some(name.split_once('|')?.0)).collect());

/// Whether Redis has this command or subcommand (in lower case).
pub(super) fn is_known(name: &str) -> bool {
    KNOWN.contains(name)
}

/// Whether Redis has a command with this name and without subcommands, so that a rule can name its
/// first argument.
pub(super) fn takes_first_arg(name: &str) -> bool {
    is_known(name) && !CONTAINERS.contains(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_lower_case_and_subcommands_belong_to_a_command() {
        for name in KNOWN.iter() {
            assert_eq!(*name, name.to_ascii_lowercase());
            let command = name.split('|').next().unwrap();
            assert!(is_known(command), "{name}");
        }
        assert!(takes_first_arg("eval") && !takes_first_arg("cluster"));
    }
}

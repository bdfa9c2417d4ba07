// node-redis and ioredis against Tidemark: node node.js MODULES PORT BASE, where BASE makes the ids of each run different.
const assert = require("node:assert");
const path = require("node:path");
const [modules, port, base] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const load = (name) => require(path.join(modules, "node_modules", name));

async function nodeRedis(RESP, id) {
  const client = load("redis").createClient({ socket: { port }, RESP });
  client.on("error", (error) => { throw error; });
  await client.connect();
  const post = `post:${id}`, liked = `liked:${id}`;
  assert.equal(await client.hIncrBy(post, "like", 3), 3);
  assert.deepEqual({ ...(await client.hGetAll(post)) }, { like: "3", repost: "0", comment: "0", read: "0" });
  assert.equal(await client.get(`post:${id + 1}:like`), null);
  assert.equal(await client.sAdd(liked, ["42", "43"]), 2);
  assert.equal(Number(await client.sIsMember(liked, "42")), 1);
  const many = await client.multi().hIncrBy(post, "read", 5).hGet(post, "read").exec();
  assert.deepEqual(many, [5, "5"]);
  const page = await client.sendCommand(["FEED.GET", "home", "42", String(id)]);
  assert.deepEqual(page, [[3, 0, 0, 5, 1, 0]]);
  const listener = client.duplicate();
  await listener.connect();
  const got = new Promise((resolve) => listener.subscribe(`news${id}`, resolve));
  while ((await client.publish(`news${id}`, "hello")) === 0);
  assert.equal(await got, "hello");
  if (RESP === 3) {
    // One connection subscribes and publishes: its own message must not appear inside a reply.
    const own = new Promise((resolve) => client.subscribe(`own${id}`, resolve));
    while ((await client.publish(`own${id}`, "alone")) === 0);
    assert.equal(await own, "alone");
    assert.deepEqual(await client.multi().ping().publish(`own${id}`, "within").echo("x").exec(), ["PONG", 1, "x"]);
    await client.unsubscribe(`own${id}`);
  }
  assert.equal(await client.get("no such key"), null);
  await assert.rejects(client.set("no such key", "1"), /Invalid key/);
  await listener.close();
  await client.close();
}

// With client-side caching, a row is read from the server once, and again after a change.
async function nodeRedisCache(id) {
  const cache = new (load("redis").BasicClientSideCache)({ maxEntries: 1000, recordStats: true });
  const client = load("redis").createClient({ socket: { port }, RESP: 3, clientSideCache: cache });
  const other = load("redis").createClient({ socket: { port }, RESP: 3 });
  for (const each of [client, other]) {
    each.on("error", (error) => { throw error; });
    await each.connect();
  }
  const post = `post:${id}`;
  const likes = async (wanted) => {
    for (let n = 0; n < 200 && (await client.hGet(post, "like")) !== wanted; n++) await new Promise((done) => setTimeout(done, 10));
    assert.equal(await client.hGet(post, "like"), wanted);
  };
  assert.equal(await other.hIncrBy(post, "like", 3), 3);
  await likes("3");
  const { hitCount, missCount } = cache.stats();
  for (let n = 0; n < 10; n++) assert.equal(await client.hGet(post, "like"), "3");
  assert.deepEqual([cache.stats().hitCount - hitCount, cache.stats().missCount - missCount], [10, 0]);
  await other.sendCommand(["FEED.ACT", "like", "42", String(id)]);
  await likes("4");
  assert.equal(await client.get(`${post}:like`), "4");
  await client.hIncrBy(post, "like", 1);
  await likes("5");
  await other.set(`${post}:like`, "9");
  await likes("9");
  assert.match(await other.info("clients"), /tracking_clients:1/);
  await other.close();
  await client.close();
}

async function ioredis(id) {
  const Redis = load("ioredis").Redis ?? load("ioredis");
  const client = new Redis(port);
  const post = `post:${id}`;
  assert.equal(await client.hincrby(post, "like", 3), 3);
  assert.deepEqual(await client.hgetall(post), { like: "3", repost: "0", comment: "0", read: "0" });
  const piped = await client.pipeline().incr(`${post}:read`).get(`${post}:read`).exec();
  assert.deepEqual(piped, [[null, 1], [null, "1"]]);
  const many = await client.multi().incr(`${post}:read`).set("no such key", 1).exec();
  assert.equal(many[0][1], 2);
  assert.match(many[1][0].message, /Invalid key/);
  assert.deepEqual(await client.call("FEED.GET", "home", "42", String(id)), [[3, 0, 0, 2, 0, 0]]);
  const listener = client.duplicate();
  await listener.psubscribe(`n?ws${id}`);
  const got = new Promise((resolve) => listener.on("pmessage", (pattern, channel, text) => resolve(text)));
  assert.equal(await client.publish(`news${id}`, "hello"), 1);
  assert.equal(await got, "hello");
  listener.disconnect();
  await client.quit();
}

(async () => {
  await nodeRedis(2, base);
  await nodeRedis(3, base + 100);
  await nodeRedisCache(base + 300);
  await ioredis(base + 200);
  console.log("ok");
})().catch((error) => { console.error(error); process.exit(1); });

// Writes continuously with ioredis or node-redis, like writer.py with redis-py.
// node writer.js MODULES ioredis|node-redis sentinel|cluster PORTS POST
const path = require("node:path");
const [modules, library, mode, list, post] = process.argv.slice(2);
const load = (name) => require(path.join(modules, "node_modules", name));
const places = list.split(",").map((port) => ({ host: "127.0.0.1", port: Number(port) }));
const say = (...words) => process.stdout.write(words.join(" ") + "\n");
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function connect() {
  if (library === "ioredis") {
    const Redis = load("ioredis").Redis ?? load("ioredis");
    const client = mode === "sentinel" ? new Redis({ sentinels: places, name: "m" }) : new Redis.Cluster(places);
    client.on("error", () => {});
    return () => client.hincrby(`post:${post}`, "like", 1);
  }
  const { createSentinel, createCluster } = load("redis");
  const client = mode === "sentinel" ? createSentinel({ name: "m", sentinelRootNodes: places })
    : createCluster({ rootNodes: places.map((socket) => ({ socket })) });
  client.on("error", () => {});
  await client.connect();
  return () => client.hIncrBy(`post:${post}`, "like", 1);
}

(async () => {
  const write = await connect();
  for (;;) {
    try {
      await write();
      say("ok", Date.now() / 1000);
    } catch (error) {
      say("no", String(error.message).slice(0, 200).replaceAll("\n", " "));
    }
    await pause(20);
  }
})();

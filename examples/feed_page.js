// A feed page with node-redis: node feed_page.js PORT FIRST_ID
const { createClient } = require("redis");

async function main(port, first) {
  const viewer = 7, posts = [first, first + 1];
  const client = await createClient({ socket: { port } }).connect();

  // Likes the first post. The reply is 1 for a new like; a repeated one gets 0 and changes nothing.
  await client.sendCommand(["FEED.ACT", "like", String(viewer), String(first)]);
  // Increments a single counter, as a field of a hash.
  await client.hIncrBy(`post:${first}`, "comment", 1);
  // The page: for each post the counters of the view, then the viewer's flags.
  const page = await client.sendCommand(["FEED.GET", "home", String(viewer), ...posts.map(String)]);

  page.forEach(([like, repost, comment, read, liked, seen], i) => {
    console.log(`post ${posts[i]}: ${like} likes, ${comment} comments; liked by me: ${liked ? "yes" : "no"}`);
  });
  await client.close();
}

main(Number(process.argv[2]), Number(process.argv[3]));

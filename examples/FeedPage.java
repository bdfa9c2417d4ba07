// A feed page with Jedis: java -cp "jars/*" FeedPage.java PORT FIRST_ID
import java.util.List;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.commands.ProtocolCommand;

public class FeedPage {
    static ProtocolCommand command(String name) {
        return name::getBytes;
    }

    public static void main(String[] args) {
        long first = Long.parseLong(args[1]);
        String viewer = "7";
        long[] posts = {first, first + 1};
        try (Jedis jedis = new Jedis("127.0.0.1", Integer.parseInt(args[0]))) {
            // Likes the first post. The reply is 1 for a new like; a repeated one gets 0 and changes nothing.
            jedis.sendCommand(command("FEED.ACT"), "like", viewer, Long.toString(first));
            // Increments a single counter, as a field of a hash.
            jedis.hincrBy("post:" + first, "comment", 1);
            // The page: for each post the counters of the view, then the viewer's flags.
            List<?> page = (List<?>) jedis.sendCommand(command("FEED.GET"), "home", viewer,
                    Long.toString(posts[0]), Long.toString(posts[1]));

            for (int i = 0; i < posts.length; i++) {
                List<?> row = (List<?>) page.get(i); // like, repost, comment, read, liked, seen
                System.out.printf("post %d: %s likes, %s comments; liked by me: %s%n", posts[i],
                        row.get(0), row.get(2), Long.valueOf(1).equals(row.get(4)) ? "yes" : "no");
            }
        }
    }
}

// Writes continuously with Jedis, like writer.py with redis-py.
// java -cp JEDIS Writer.java sentinel|cluster PORTS POST
import java.util.LinkedHashSet;
import java.util.Locale;
import java.util.Set;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisCluster;
import redis.clients.jedis.JedisSentinelPool;

public class Writer {
    interface Write {
        void once();
    }

    public static void main(String[] args) throws InterruptedException {
        String key = "post:" + args[2];
        Write write;
        if (args[0].equals("sentinel")) {
            Set<String> places = new LinkedHashSet<>();
            for (String port : args[1].split(",")) {
                places.add("127.0.0.1:" + port);
            }
            JedisSentinelPool pool = new JedisSentinelPool("m", places);
            write = () -> {
                try (Jedis jedis = pool.getResource()) {
                    jedis.hincrBy(key, "like", 1);
                }
            };
        } else {
            Set<HostAndPort> places = new LinkedHashSet<>();
            for (String port : args[1].split(",")) {
                places.add(new HostAndPort("127.0.0.1", Integer.parseInt(port)));
            }
            JedisCluster cluster = new JedisCluster(places);
            write = () -> cluster.hincrBy(key, "like", 1);
        }
        while (true) {
            try {
                write.once();
                System.out.printf(Locale.ROOT, "ok %.3f%n", System.currentTimeMillis() / 1000.0);
            } catch (RuntimeException error) {
                System.out.println("no " + String.valueOf(error.getMessage()).replace('\n', ' '));
            }
            Thread.sleep(20);
        }
    }
}

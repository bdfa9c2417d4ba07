// Writes continuously with Debian's version of go-redis, like writer.py with redis-py.
// writer sentinel|cluster PORTS POST
package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"gopkg.in/redis.v5"
)

func main() {
	var places []string
	for _, port := range strings.Split(os.Args[2], ",") {
		places = append(places, "127.0.0.1:"+port)
	}
	var client redis.Cmdable
	if os.Args[1] == "sentinel" {
		client = redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: places})
	} else {
		client = redis.NewClusterClient(&redis.ClusterOptions{Addrs: places})
	}
	for {
		if err := client.HIncrBy("post:"+os.Args[3], "like", 1).Err(); err == nil {
			fmt.Printf("ok %.3f\n", float64(time.Now().UnixNano())/1e9)
		} else {
			fmt.Println("no", strings.ReplaceAll(err.Error(), "\n", " "))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

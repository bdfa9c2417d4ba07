// A feed page with redigo: go run feed_page.go PORT FIRST_ID
package main

import (
	"fmt"
	"log"
	"os"
	"strconv"

	"github.com/gomodule/redigo/redis"
)

func main() {
	first, err := strconv.ParseInt(os.Args[2], 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	viewer, posts := 7, []int64{first, first + 1}
	c, err := redis.Dial("tcp", "127.0.0.1:"+os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	// Likes the first post. The reply is 1 for a new like; a repeated one gets 0 and changes nothing.
	if _, err := c.Do("FEED.ACT", "like", viewer, first); err != nil {
		log.Fatal(err)
	}
	// Increments a single counter, as a field of a hash.
	if _, err := c.Do("HINCRBY", fmt.Sprintf("post:%d", first), "comment", 1); err != nil {
		log.Fatal(err)
	}
	// The page: for each post the counters of the view, then the viewer's flags.
	page, err := redis.Values(c.Do("FEED.GET", redis.Args{"home", viewer}.AddFlat(posts)...))
	if err != nil {
		log.Fatal(err)
	}

	for i, row := range page {
		n, err := redis.Int64s(row, nil) // like, repost, comment, read, liked, seen
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("post %d: %d likes, %d comments; liked by me: %s\n", posts[i], n[0], n[2], map[int64]string{0: "no", 1: "yes"}[n[4]])
	}
}

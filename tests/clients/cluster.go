// ClusterClient of Debian's version of go-redis: likes, pages and pipelines.
// cluster PORTS FIRST LAST    of posts that no client has liked
package main

import (
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"

	"gopkg.in/redis.v5"
)

func expect(what string, err error, got, want interface{}) {
	if err != nil || !reflect.DeepEqual(got, want) {
		fmt.Printf("%s: %v, %#v instead of %#v\n", what, err, got, want)
		os.Exit(1)
	}
}

func ints(values ...int64) []interface{} {
	all := make([]interface{}, len(values))
	for i, value := range values {
		all[i] = value
	}
	return all
}

func main() {
	var places []string
	for _, port := range strings.Split(os.Args[1], ",") {
		places = append(places, "127.0.0.1:"+port)
	}
	first, _ := strconv.Atoi(os.Args[2])
	last, _ := strconv.Atoi(os.Args[3])
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: places})
	do := func(words ...interface{}) (interface{}, error) {
		cmd := redis.NewCmd(words...)
		client.Process(cmd)
		return cmd.Result()
	}
	for post := first; post < last; post++ {
		id, key := strconv.Itoa(post), fmt.Sprintf("post:{%d}", post)
		got, err := do("FEED.ACT", "like", "7", id)
		expect("act", err, got, interface{}(ints(1)))
		got, err = do("FEED.ACT", "like", "7", id)
		expect("act again", err, got, interface{}(ints(0)))
		read, err := client.HIncrBy(key, "read", 2).Result()
		expect("hincrby", err, read, int64(2))
		got, err = do("FEED.GET", "home", "7", id)
		expect("page", err, got, interface{}([]interface{}{ints(1, 0, 0, 2, 1, 0)}))
	}
	var likes []*redis.StringCmd
	var liked []*redis.BoolCmd
	var pages []*redis.Cmd
	_, err := client.Pipelined(func(pipe *redis.Pipeline) error {
		for post := first; post < last; post++ {
			likes = append(likes, pipe.HGet(fmt.Sprintf("post:{%d}", post), "like"))
			liked = append(liked, pipe.SIsMember(fmt.Sprintf("liked:{%d}", post), 7))
			page := redis.NewCmd("FEED.GET", "home", "7", strconv.Itoa(post))
			pipe.Process(page)
			pages = append(pages, page)
		}
		return nil
	})
	expect("pipeline", err, len(pages), last-first)
	for i := range pages {
		expect("hget", likes[i].Err(), likes[i].Val(), "1")
		expect("sismember", liked[i].Err(), liked[i].Val(), true)
		expect("page of a pipeline", pages[i].Err(), pages[i].Val(), interface{}([]interface{}{ints(1, 0, 0, 2, 1, 0)}))
	}
	// A page of all shards.
	words := []interface{}{"FEED.GET", "home", "7"}
	for post := first; post < last; post++ {
		words = append(words, strconv.Itoa(post))
	}
	page, err := do(words...)
	rows, _ := page.([]interface{})
	expect("a page of all shards", err, len(rows), last-first)
	for _, row := range rows {
		expect("row", nil, row, interface{}(ints(1, 0, 0, 2, 1, 0)))
	}
	fmt.Println("ok")
}

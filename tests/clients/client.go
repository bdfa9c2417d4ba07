// redigo (Go) against Tidemark: go run client.go PORT BASE, where BASE makes the ids of each run different.
package main

import (
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/gomodule/redigo/redis"
)

func expect(what string, err error, got, want interface{}) {
	if err != nil || !reflect.DeepEqual(got, want) {
		fmt.Printf("%s: %v, %#v instead of %#v\n", what, err, got, want)
		os.Exit(1)
	}
}

func main() {
	base, _ := strconv.ParseInt(os.Args[2], 10, 64)
	pool := &redis.Pool{MaxIdle: 2, Dial: func() (redis.Conn, error) {
		return redis.Dial("tcp", "127.0.0.1:"+os.Args[1], redis.DialClientName("go"))
	}}
	c := pool.Get()
	defer c.Close()
	post, liked := fmt.Sprint("post:", base), fmt.Sprint("liked:", base)

	// A pipeline: sends all requests before it reads the first reply.
	for i := int64(0); i < 20; i++ {
		c.Send("HINCRBY", fmt.Sprint("post:", base+i), "like", i)
	}
	c.Flush()
	for i := int64(0); i < 20; i++ {
		n, err := redis.Int64(c.Receive())
		expect("pipeline", err, n, i)
	}

	// A page, before and after a like.
	ids := redis.Args{}.Add("home", 42)
	for i := int64(0); i < 20; i++ {
		ids = ids.Add(base + i)
	}
	acted, err := redis.Ints(c.Do("FEED.ACT", "like", 42, base+1, base+2))
	expect("act", err, acted, []int{1, 1})
	page, err := redis.Values(c.Do("FEED.GET", ids...))
	expect("page", err, len(page), 20)
	for i, row := range page {
		flag := int64(0)
		if i == 1 || i == 2 {
			flag = 1
		}
		got, err := redis.Int64s(row, nil)
		expect("row", err, got, []int64{int64(i) + flag, 0, 0, 0, flag, 0})
	}

	// Hashes, strings and sets, as an application uses them.
	row, err := redis.Int64Map(c.Do("HGETALL", fmt.Sprint("post:", base+5)))
	expect("hgetall", err, row, map[string]int64{"like": 5, "repost": 0, "comment": 0, "read": 0})
	_, err = redis.Int64(c.Do("GET", fmt.Sprint("post:", base+100, ":like")))
	expect("get of nothing", nil, err, redis.ErrNil)
	added, err := redis.Int(c.Do("SADD", liked, "7", "8"))
	expect("sadd", err, added, 2)
	is, err := redis.Bool(c.Do("SISMEMBER", liked, "8"))
	expect("sismember", err, is, true)
	_, err = redis.Int64(c.Do("GET", "no such key"))
	expect("get of a key of no space", nil, err, redis.ErrNil)
	_, err = c.Do("SET", "no such key", "1")
	expect("an error that names the key", nil, err != nil && strings.Contains(err.Error(), "Invalid key"), true)

	// A transaction, and a discarded one.
	c.Send("MULTI")
	c.Send("INCR", post+":read")
	c.Send("HGET", post, "read")
	done, err := redis.Values(c.Do("EXEC"))
	expect("exec", err, done, []interface{}{int64(1), []byte("1")})
	other := pool.Get()
	defer other.Close()
	c.Do("WATCH", post)
	other.Do("INCR", post+":read")
	c.Send("MULTI")
	c.Send("INCR", post+":read")
	called, err := c.Do("EXEC")
	expect("a watched key has changed", err, called, nil)

	// The change stream, which contains synced changes only.
	streams, err := redis.Values(c.Do("XREAD", "BLOCK", 20000, "COUNT", 5, "STREAMS", "tm:changes:post", "0"))
	expect("streams", err, len(streams), 1)
	stream, err := redis.Values(streams[0], nil)
	expect("a stream", err, stream[0], []byte("tm:changes:post"))
	entries, err := redis.Values(stream[1], nil)
	expect("entries", err, len(entries) > 0, true)
	entry, err := redis.Values(entries[0], nil)
	expect("an entry", err, len(entry), 2)
	fields, err := redis.StringMap(entry[1], nil)
	expect("fields", err, fields["space"] == "post" || fields["schema"] != "", true)

	// Channels.
	listener := redis.PubSubConn{Conn: pool.Get()}
	defer listener.Close()
	channel := fmt.Sprint("news", base)
	listener.Subscribe(channel)
	expect("subscribe", nil, listener.Receive(), redis.Subscription{Kind: "subscribe", Channel: channel, Count: 1})
	heard, err := redis.Int(c.Do("PUBLISH", channel, "hello"))
	expect("publish", err, heard, 1)
	expect("message", nil, listener.Receive(), redis.Message{Channel: channel, Data: []byte("hello")})
	listener.Ping("alive")
	expect("pong", nil, listener.Receive(), redis.Pong{Data: "alive"})
	fmt.Println("ok")
}

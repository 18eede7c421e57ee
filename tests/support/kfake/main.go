// Kfake is a cluster that speaks Kafka's protocol in memory, from the authors of the client franz-go. It shares no code
// with Apache Kafka. Faults are set by HTTP.
package main

import (
	"encoding/binary"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

var (
	mutex   sync.Mutex
	losing  = map[int]int{} // api key → how many of the next answers to such requests are lost, with their connections
	lost    int
	delayed int
)

func isLost(key int) bool {
	mutex.Lock()
	defer mutex.Unlock()
	if losing[key] == 0 {
		return false
	}
	losing[key]--
	lost++
	return true
}

type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	return &connection{Conn: accepted}, err
}

// A connection knows to which request each answer belongs. Kfake writes each answer by one call.
type connection struct {
	net.Conn
	unread []byte
	asked  sync.Map // correlation id → api key
}

func (c *connection) Read(into []byte) (int, error) {
	count, err := c.Conn.Read(into)
	c.unread = append(c.unread, into[:count]...)
	for len(c.unread) >= 12 {
		end := 4 + int(binary.BigEndian.Uint32(c.unread))
		if len(c.unread) < end {
			break
		}
		c.asked.Store(binary.BigEndian.Uint32(c.unread[8:]), int(binary.BigEndian.Uint16(c.unread[4:])))
		c.unread = c.unread[end:]
	}
	return count, err
}

func (c *connection) Write(answer []byte) (int, error) {
	key, _ := c.asked.LoadAndDelete(binary.BigEndian.Uint32(answer[4:]))
	if number, ok := key.(int); ok && isLost(number) {
		c.Conn.Close()
		return 0, net.ErrClosed
	}
	return c.Conn.Write(answer)
}

func numbers(text string) (found []int) {
	for _, each := range strings.Split(text, ",") {
		if number, err := strconv.Atoi(each); err == nil {
			found = append(found, number)
		}
	}
	return found
}

func main() {
	ports := flag.String("ports", "", "of the brokers")
	faults := flag.String("faults", "", "the address of the server that sets faults")
	topic := flag.String("topic", "orders", "a topic of two partitions")
	without := flag.String("without", "", "api keys of requests that are not supported")
	flag.Parse()

	versions := kversion.Stable()
	for _, key := range numbers(*without) {
		versions.SetMaxKeyVersion(int16(key), -1)
	}
	cluster, err := kfake.NewCluster(
		kfake.Ports(numbers(*ports)...),
		kfake.SeedTopics(2, *topic),
		kfake.MaxVersions(versions),
		kfake.ListenFn(func(network, address string) (net.Listener, error) {
			found, err := net.Listen(network, address)
			return listener{found}, err
		}),
	)
	if err != nil {
		log.Fatal(err)
	}
	handle := func(path string, set func(key, times int, value int)) {
		http.HandleFunc(path, func(_ http.ResponseWriter, asked *http.Request) {
			of := func(name string) int { number, _ := strconv.Atoi(asked.FormValue(name)); return number }
			set(of("key"), of("times"), of("value"))
		})
	}
	var failures []*kfake.FaultHandle
	http.HandleFunc("/happened", func(to http.ResponseWriter, _ *http.Request) {
		mutex.Lock()
		defer mutex.Unlock()
		failed := 0
		for _, each := range failures {
			failed += each.Hits()
		}
		fmt.Fprintf(to, `{"lost": %d, "failed": %d, "delayed": %d}`, lost, failed, delayed)
	})
	handle("/lose", func(key, times, _ int) {
		mutex.Lock()
		defer mutex.Unlock()
		losing[key] += times
	})
	handle("/fail", func(key, times, code int) {
		wanted := kfake.Fault{Keys: []kmsg.Key{kmsg.Key(key)}, Err: kerr.TypedErrorForCode(int16(code)), Count: times}
		mutex.Lock()
		defer mutex.Unlock()
		failures = append(failures, cluster.Fault(wanted))
	})
	handle("/delay", func(key, times, ms int) {
		cluster.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
			if times--; times <= 0 {
				cluster.DropControl()
			}
			mutex.Lock()
			delayed++
			mutex.Unlock()
			cluster.SleepControl(func() { time.Sleep(time.Duration(ms) * time.Millisecond) })
			return nil, nil, false
		})
	})
	handle("/move", func(int, int, int) {
		cluster.RehashCoordinators()
		cluster.ShufflePartitionLeaders()
	})
	log.Fatal(http.ListenAndServe(*faults, nil))
}

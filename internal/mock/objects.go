package mock

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// objects keeps what clients of the provider's account have made: files, batches and responses, under raw ids.
type objects struct {
	mu    sync.Mutex
	kinds map[string]*collection
}

type collection struct {
	bodies  map[string]string
	content map[string][]byte
	order   []string
}

// maxObjects bounds each collection; the oldest go first.
const maxObjects = 10_000

func (o *objects) put(kind, id, body string) { o.putContent(kind, id, body, nil) }

func (o *objects) putContent(kind, id, body string, content []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.kinds == nil {
		o.kinds = map[string]*collection{}
	}
	all := o.kinds[kind]
	if all == nil {
		all = &collection{bodies: map[string]string{}, content: map[string][]byte{}}
		o.kinds[kind] = all
	}
	if _, known := all.bodies[id]; !known {
		all.order = append(all.order, id)
	}
	all.bodies[id], all.content[id] = body, content
	if len(all.order) > maxObjects {
		delete(all.bodies, all.order[0])
		delete(all.content, all.order[0])
		all.order = all.order[1:]
	}
}

// get returns the object, empty if there is none.
func (o *objects) get(kind, id string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if all := o.kinds[kind]; all != nil {
		return all.bodies[id]
	}
	return ""
}

func (o *objects) contentOf(kind, id string) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.kinds[kind].content[id]
}

func (o *objects) remove(kind, id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.kinds[kind]
	delete(all.bodies, id)
	delete(all.content, id)
	all.order = slices.DeleteFunc(all.order, func(known string) bool { return known == id })
}

// list returns the objects, newest first, as JSON.
func (o *objects) list(kind string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var bodies []string
	first, last := "null", "null"
	if all := o.kinds[kind]; all != nil && len(all.order) > 0 {
		for _, id := range slices.Backward(all.order) {
			bodies = append(bodies, all.bodies[id])
		}
		first, last = `"`+all.order[len(all.order)-1]+`"`, `"`+all.order[0]+`"`
	}
	return `{"object":"list","data":[` + strings.Join(bodies, ",") + `],"first_id":` + first + `,"last_id":` + last + `,"has_more":false}`
}

// object answers the routes of files, batches and responses; false: the path is none of them.
func (c *call) object() (answer, bool) {
	parts := strings.Split(strings.TrimPrefix(c.path, "/"), "/")
	kind := parts[0]
	if kind != "files" && kind != "batches" && kind != "responses" {
		return answer{}, false
	}
	if kind == "batches" {
		return c.batch(parts[1:]), true
	}
	if len(parts) == 1 {
		return c.collection(kind), true
	}
	id := parts[1]
	body := c.server.objects.get(kind, id)
	if body == "" {
		return c.refuse(http.StatusNotFound, "object", "No such object: "+id), true
	}
	action := c.r.Method + " " + strings.Join(parts[2:], "/")
	switch {
	case action == "GET ":
		return unary(body), true
	case action == "DELETE ":
		c.server.objects.remove(kind, id)
		return unary(`{"id":"` + id + `","object":"` + strings.TrimSuffix(kind, "s") + `","deleted":true}`), true
	case action == "GET content" && kind == "files":
		return answer{status: http.StatusOK, contentType: "application/octet-stream", frames: [][]byte{c.server.objects.contentOf(kind, id)}}, true
	case action == "POST cancel" && kind == "responses":
		return unary(body), true
	case action == "GET input_items" && kind == "responses":
		return unary(`{"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false}`), true
	}
	return c.refuse(http.StatusNotFound, "object", "Unknown request URL: "+c.r.Method+" "+c.r.URL.Path+"."), true
}

func (c *call) collection(kind string) answer {
	store := &c.server.objects
	switch c.r.Method + " " + kind {
	case "GET files":
		return unary(store.list(kind))
	case "POST responses":
		return c.createResponse()
	case "POST files":
		id := "file-mock" + c.number()
		body := `{"id":"` + id + `","object":"file","bytes":` + strconv.Itoa(len(c.body.file)) + `,"created_at":` + created + `,"filename":` +
			string(quote(c.body.filename)) + `,"purpose":` + string(quote(c.body.Purpose)) + `,"status":"processed"}`
		store.putContent(kind, id, body, c.body.file)
		return unary(body)
	}
	return c.refuse(http.StatusNotFound, "object", "Unknown request URL: "+c.r.Method+" "+c.r.URL.Path+".")
}

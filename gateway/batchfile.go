package gateway

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/providers"
)

// Bounds of a file of requests. OpenAI's own are 200 MB and 50,000 requests.
const (
	maxBatchFile  = 200 << 20 // bytes
	maxBatchLines = 50_000
	maxBatchLine  = 8 << 20 // bytes
	maxCustomID   = 512     // bytes
)

// batchFile carries a file of requests to a provider, line by line: each line must be a request of one route and one model
// that the key may use, and goes on as it came, but for the model's name.
type batchFile struct {
	c      *call
	target *governance.Target // chosen by the first line
	model  string
	route  *route
	demand governance.Demand
	seen   map[[16]byte]struct{} // hashes of custom ids
	bytes  int64                 // that went on
}

var errLongLine = errors.New("line is too long")

// readLine returns the next line without its end, in memory that is valid until the next call. A line above limit is
// errLongLine, and its rest is still to be read.
func readLine(r *bufio.Reader, room []byte, limit int) (line, grown []byte, err error) {
	room = room[:0]
	for {
		piece, err := r.ReadSlice('\n')
		if len(room)+len(piece) > limit {
			return nil, room, errLongLine
		}
		switch {
		case err == nil && len(room) == 0:
			return trimEnd(piece), room, nil
		case err == nil:
			room = append(room, piece...)
			return trimEnd(room), room, nil
		case errors.Is(err, bufio.ErrBufferFull):
			room = append(room, piece...)
		case errors.Is(err, io.EOF) && len(room)+len(piece) > 0:
			room = append(room, piece...)
			return room, room, nil
		default:
			return nil, room, err
		}
	}
}

func trimEnd(line []byte) []byte {
	line = line[:len(line)-1]
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return line
}

// carry reads the whole file. start is told when the first line has said which provider gets it, and returns where to write.
func (f *batchFile) carry(from io.Reader, start func() (*bufio.Writer, error)) error {
	f.seen = make(map[[16]byte]struct{})
	in := bufio.NewReaderSize(from, 64<<10)
	var to *bufio.Writer
	var room []byte
	held := 0 // bytes of room that the budget for bodies knows of
	defer func() { f.c.g.bodies.give(int64(held)) }()
	for number := 1; ; number++ {
		line, grown, err := readLine(in, room, maxBatchLine)
		room = grown
		if more := cap(room) - held; more > 0 {
			if !f.c.g.bodies.take(int64(more)) {
				return fault(governance.CodeGatewayOverloaded, "Too many large requests are in flight.")
			}
			held += more
		}
		switch {
		case errors.Is(err, io.EOF):
			if f.demand.Batch == nil {
				return invalid("file", "The file has no requests.")
			}
			return nil
		case errors.Is(err, errLongLine):
			return f.refuse(number, "is longer than "+strconv.Itoa(maxBatchLine)+" bytes")
		case err != nil:
			return err
		case len(line) == 0:
			continue
		case len(f.seen) == maxBatchLines:
			return f.refuse(number, "is one request too many: a file has at most "+strconv.Itoa(maxBatchLines))
		}
		text, err := f.rewrite(number, line)
		if err != nil {
			return err
		}
		if to == nil {
			if to, err = start(); err != nil {
				return err
			}
		}
		if _, err = to.Write(text); err == nil {
			err = to.WriteByte('\n')
		}
		if err != nil {
			return fmt.Errorf("pass the file on: %w", err)
		}
		f.bytes += int64(len(text)) + 1
	}
}

func (f *batchFile) refuse(number int, why string) *governance.Error {
	return invalid("file", "Line "+strconv.Itoa(number)+" of the file "+why+".")
}

// about says of an error in which line it is.
func (f *batchFile) about(number int, err error) error {
	e, ok := errors.AsType[*governance.Error](err)
	if !ok {
		return err
	}
	told := *e
	told.Public = "Line " + strconv.Itoa(number) + " of the file: " + e.Public
	return &told
}

// rewrite checks one line and returns what goes on in its place.
func (f *batchFile) rewrite(number int, line []byte) ([]byte, error) {
	doc, err := jsonedit.Parse(line)
	if err != nil {
		return nil, f.refuse(number, "cannot be read: "+err.Error())
	}
	id, _, err := doc.String("custom_id")
	if err != nil || id == "" || len(id) > maxCustomID {
		return nil, f.refuse(number, "needs a custom_id of 1 to "+strconv.Itoa(maxCustomID)+" bytes")
	}
	sum := sha256.Sum256([]byte(id))
	key := [16]byte(sum[:16])
	if _, twice := f.seen[key]; twice {
		return nil, f.refuse(number, "has a custom_id that another line has, too")
	}
	f.seen[key] = struct{}{}
	if method, _, err := doc.String("method"); err != nil || method != http.MethodPost {
		return nil, f.refuse(number, "must have the method POST")
	}
	path, _, err := doc.String("url")
	if err != nil {
		return nil, f.refuse(number, "has a url that is no string")
	}
	rt := batchRoute(path)
	switch {
	case rt == nil:
		return nil, f.refuse(number, "has a url that batches do not take")
	case f.route != nil && rt.name != f.route.name:
		return nil, f.refuse(number, "has another url than the lines before it")
	}
	raw, ok := doc.Get("body")
	if !ok || raw[0] != '{' {
		return nil, f.refuse(number, "has no body")
	}
	body, err := jsonedit.Parse(raw)
	if err != nil {
		return nil, f.refuse(number, "has a body that cannot be read: "+err.Error())
	}
	model, _, err := body.String("model")
	switch {
	case err != nil || model == "":
		return nil, f.refuse(number, "has a body without a model")
	case f.route == nil:
		if err := f.choose(rt, model); err != nil {
			return nil, f.about(number, err)
		}
	case model != f.model:
		return nil, f.refuse(number, "asks for another model than the lines before it: a file has requests to one")
	}
	if stream, _, err := body.Bool("stream"); err != nil || stream {
		return nil, f.refuse(number, "asks for a stream, which batches have not")
	}
	for _, member := range []string{"previous_response_id", "conversation", "background"} {
		if raw, given := body.Get(member); given && string(raw) != "null" && string(raw) != "false" && rt.dialect == providers.OpenAIResponses {
			return nil, f.refuse(number, "has "+member+", which batches do not take: send the whole conversation as input")
		}
	}
	one, err := governance.DemandOf(rt.name, body)
	if err == nil {
		err = f.demand.Add(&one)
	}
	if err != nil {
		return nil, f.about(number, err)
	}
	edits := f.edits(body)
	if len(edits) == 0 {
		return line, nil
	}
	text, err := body.With(edits...)
	if err == nil {
		text, err = doc.With(jsonedit.At("body").Raw(text))
	}
	if err != nil {
		return nil, f.refuse(number, "cannot be read: "+err.Error())
	}
	return text, nil
}

// edits are the changes of a request that one to the same target by itself would have, too.
func (f *batchFile) edits(body *jsonedit.Document) []jsonedit.Edit {
	p := f.c.g.providers[f.target.ProviderKind]
	edits := memberEdits(p, f.route.dialect, f.target.UpstreamModel)
	if edits == nil && f.target.UpstreamModel != f.model {
		edits = append(edits, jsonedit.At("model").String(f.target.UpstreamModel))
	}
	edits = append(edits, quirkEdits(p, f.route.dialect, body)...)
	one := attempt{target: f.target}
	edits = append(edits, one.drops(body)...)
	for _, w := range one.warnings {
		if !slices.Contains(f.c.warnings, w) {
			f.c.warnings = append(f.c.warnings, w)
		}
	}
	return edits
}

// batchRoute returns the route of a path that the requests of a batch may have; nil: they may not.
func batchRoute(path string) *route {
	for _, rt := range routes() {
		if rt.path != path {
			continue
		}
		switch rt.name {
		case governance.RouteChat, governance.RouteCompletions, governance.RouteResponses, governance.RouteEmbeddings, governance.RouteModerations:
			return rt
		}
	}
	return nil
}

// choose finds the provider that gets the file: of the model's targets the first whose account keeps files and which speaks
// the requests' dialect.
func (f *batchFile) choose(rt *route, model string) error {
	t, err := f.c.batchTarget(rt, model, 0)
	if err != nil {
		return err
	}
	f.route, f.model, f.target = rt, model, t
	return nil
}

// batchTarget resolves a model for requests of a batch. at is the number of a target whose provider it must be; 0: any.
func (c *call) batchTarget(rt *route, model string, at int64) (*governance.Target, error) {
	c.Model, c.Route = model, rt.name
	if err := c.resolve(); err != nil {
		return nil, err
	}
	if err := c.g.chain.unseen(c, "batches", true, true); err != nil {
		return nil, err
	}
	for _, t := range c.Resolved.Targets {
		a, ok := c.g.account(t)
		if ok && slices.Contains(a.batcher.Speaks(), rt.dialect) && (at == 0 || t.Num == at) {
			return t, nil
		}
	}
	if at != 0 {
		return nil, &governance.Error{
			Code: governance.CodeModelNotFound, Public: "The model is no longer served where the file is kept. Upload it again.", Param: "input_file_id",
		}
	}
	return nil, &governance.Error{Code: governance.CodeModelNotAllowed, Public: "The model cannot be called in batches.", Param: "model"}
}

package gateway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/ids"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/providers"
)

const (
	maxFormField = 1 << 10 // bytes of a field that is no file
	maxFormParts = 16
	maxFileName  = 255
	pageDefault  = 20
	pageMost     = 100
)

// fileState is a file as clients see it.
type fileState struct {
	ID        string `json:"id"`
	Object    string `json:"object"`
	Bytes     int64  `json:"bytes"`
	CreatedAt int64  `json:"created_at"`
	ExpiresAt *int64 `json:"expires_at,omitempty"`
	Filename  string `json:"filename"`
	Purpose   string `json:"purpose"`
	Status    string `json:"status"`
}

type listState struct {
	Object  string  `json:"object"`
	Data    any     `json:"data"`
	FirstID *string `json:"first_id"`
	LastID  *string `json:"last_id"`
	HasMore bool    `json:"has_more"`
}

type deletedState struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Deleted bool   `json:"deleted"`
}

func asFile(f *governance.File) fileState {
	state := fileState{
		ID: f.ID, Object: "file", Bytes: f.Bytes, CreatedAt: f.CreatedAt.Unix(), Filename: f.Name, Purpose: string(f.Purpose),
		Status: "processed",
	}
	if !f.ExpiresAt.IsZero() {
		at := f.ExpiresAt.Unix()
		state.ExpiresAt = &at
	}
	return state
}

// keeps reports whether this gateway serves files and batches to the call. Anthropic's have the same paths and another form.
func (c *call) keeps() error {
	if c.g.batches == nil || c.anthropic {
		return fault(governance.CodeNotFound, "This path is not served here.")
	}
	return nil
}

func noFile(param string) error {
	return &governance.Error{Code: governance.CodeNotFound, Public: "There is no such file.", Param: param}
}

// file finds a file of the caller's organization. It comes before any call of a provider, so that nothing but Tollgate's own
// names leads to one (F152).
func (c *call) file(id, param string) (governance.File, error) {
	f, err := c.g.batches.File(c.ctx(), c.Principal.Organization.Num, id)
	if errors.Is(err, governance.ErrNotFound) {
		return f, noFile(param)
	}
	if err != nil {
		return f, orUnavailable(err)
	}
	return f, nil
}

// page reads the parameters of a list.
func (c *call) page(q url.Values, known ...string) (governance.Page, error) {
	p := governance.Page{Limit: pageDefault, Cursor: q.Get("after")}
	for name, values := range q {
		switch {
		case len(values) != 1:
			return p, invalid(name, "The parameter "+name+" is given more than once.")
		case name == "limit":
			n, err := strconv.Atoi(values[0])
			if err != nil || n < 1 {
				return p, invalid(name, "limit must be a number from 1 on.")
			}
			p.Limit = min(n, pageMost)
		case name == "order":
			if values[0] != "desc" {
				return p, invalid(name, "Lists are in the order desc, the newest first.")
			}
		case name != "after" && !slices.Contains(known, name):
			return p, invalid(name, "The parameter "+name+" is unknown.")
		}
	}
	return p, nil
}

// serveFiles lists the organization's files.
func (c *call) serveFiles() error {
	if err := c.keeps(); err != nil {
		return err
	}
	q := c.r.URL.Query()
	p, err := c.page(q, "purpose")
	if err != nil {
		return err
	}
	files, next, err := c.g.batches.Files(c.ctx(), c.Principal.Organization.Num, governance.FilePurpose(q.Get("purpose")), p)
	switch {
	case errors.Is(err, governance.ErrNotFound):
		return noFile("after")
	case err != nil:
		return orUnavailable(err)
	}
	data := make([]fileState, 0, len(files))
	for i := range files {
		data = append(data, asFile(&files[i]))
	}
	list := listState{Object: "list", Data: data, HasMore: next != ""}
	if n := len(data); n > 0 {
		list.FirstID, list.LastID = &data[0].ID, &data[n-1].ID
	}
	return c.reply(list)
}

// serveFile shows one file. What is known of it is known here.
func (c *call) serveFile() error {
	if err := c.keeps(); err != nil {
		return err
	}
	f, err := c.file(c.param, "")
	if err != nil {
		return err
	}
	return c.reply(asFile(&f))
}

// accountOf returns the account that has a file or a batch.
func (c *call) accountOf(target int64) (account, error) {
	t, err := c.g.batches.Target(c.ctx(), target)
	if err != nil {
		return account{}, orUnavailable(err)
	}
	a, ok := c.g.account(&t)
	if !ok {
		return account{}, fault(governance.CodeUpstreamUnreachable, "The provider cannot be called as it is configured.")
	}
	return a, nil
}

// fileThere finds the file that the path names, and the account that has it.
func (c *call) fileThere() (f governance.File, a account, err error) {
	if err := c.keeps(); err != nil {
		return f, a, err
	}
	if f, err = c.file(c.param, ""); err != nil {
		return f, a, err
	}
	a, err = c.accountOf(f.TargetNum)
	return f, a, err
}

// serveFileContent passes a file on as the provider has it.
func (c *call) serveFileContent() error {
	f, a, err := c.fileThere()
	if err != nil {
		return err
	}
	ctx, source, end := c.g.patience(c.ctx())
	defer end()
	response, _, err := a.ask(ctx, resource{
		method: http.MethodGet, kind: providers.OpenAIFiles, path: []string{f.UpstreamID, "content"},
	})
	if err != nil {
		return c.orLeft(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode/100 != 2 {
		_, _, err := a.read(response)
		return c.explain(err, naming{f.UpstreamID: f.ID})
	}
	c.header("Content-Type", "application/octet-stream")
	if n := response.ContentLength; n >= 0 {
		c.header("Content-Length", strconv.FormatInt(n, 10))
	}
	c.begin(http.StatusOK)
	source.Reader = response.Body
	buffer := make([]byte, 64<<10)
	for {
		n, err := source.Read(buffer)
		if n > 0 {
			if err := c.write(buffer[:n]); err != nil {
				c.abort = true
				return errClientLeft
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			c.abort = true // its end must not look like that of the file
			return &failure{cause: &governance.Error{Code: governance.CodeUpstreamAborted, Public: "The provider broke off.", Err: err}}
		}
	}
}

// orLeft says that the client has left, if it has.
func (c *call) orLeft(err error) error {
	if c.gone() {
		return errClientLeft
	}
	return err
}

// serveFileDelete deletes a file at its provider, and forgets it.
func (c *call) serveFileDelete() error {
	f, a, err := c.fileThere()
	if err != nil {
		return err
	}
	_, _, err = a.object(c.ctx(), resource{method: http.MethodDelete, kind: providers.OpenAIFiles, path: []string{f.UpstreamID}})
	if gone, ok := errors.AsType[*resourceError](err); err != nil && !(ok && gone.status == http.StatusNotFound) {
		return c.orLeft(c.explain(err, naming{f.UpstreamID: f.ID}))
	}
	err = c.g.batches.DeleteFile(c.ctx(), c.Principal.Organization.Num, f.ID)
	if errors.Is(err, governance.ErrNotFound) {
		return noFile("")
	}
	if err != nil {
		return orUnavailable(err)
	}
	return c.reply(deletedState{f.ID, "file", true})
}

// upload is a form with a file on its way to a provider.
type upload struct {
	c       *call
	lines   batchFile
	name    string
	purpose string
	fields  [][2]string // that go on behind the file
	out     *multipart.Writer
	buffer  *bufio.Writer
	pipe    *io.PipeWriter
	sent    chan sentFile
	cancel  context.CancelFunc
}

type sentFile struct {
	doc *jsonedit.Document
	err error
}

// serveFileUpload takes a file of requests. It is not kept here: while it comes it is checked line by line and goes on to the
// provider of the model that its requests ask for.
func (c *call) serveFileUpload() error {
	if err := c.keeps(); err != nil {
		return err
	}
	var err error
	if c.wishes, err = readWishes(c.r.Header); err != nil {
		return err
	}
	if c.r.Header.Get("Content-Encoding") != "" {
		return fault(governance.CodeUnsupportedEncoding, "Compressed request bodies are not supported. Send the body as it is.")
	}
	media, parameters, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if err != nil || media != "multipart/form-data" || parameters["boundary"] == "" {
		return invalid("", "A file is uploaded as multipart/form-data.")
	}
	if err := c.pickCatalog(); err != nil {
		return err
	}
	u := &upload{c: c}
	u.lines.c = c
	defer u.stop()
	if err := u.receive(multipart.NewReader(&formReader{c: c, left: maxBatchFile}, parameters["boundary"])); err != nil {
		return u.whyStopped(err)
	}
	c.bodyRead = true
	if err := c.rc.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	return u.finish()
}

// formReader reads a request's body under a deadline that moves on, up to a bound.
type formReader struct {
	c    *call
	left int64
}

// Read implements io.Reader.
func (r *formReader) Read(b []byte) (int, error) {
	if err := r.c.rc.SetReadDeadline(time.Now().Add(r.c.g.cfg.BodyProgress)); err != nil {
		return 0, err
	}
	n, err := r.c.r.Body.Read(b)
	r.left -= int64(n)
	switch {
	case r.left < 0:
		return 0, tooLarge()
	case err != nil && err != io.EOF: // a reader's bare io.EOF
		return n, unread(err)
	}
	return n, err
}

// receive reads the form to its end, and the file on its way on.
func (u *upload) receive(form *multipart.Reader) error {
	for range maxFormParts {
		part, err := form.NextRawPart()
		if errors.Is(err, io.EOF) {
			return u.complete()
		}
		if err != nil {
			return malformed(err)
		}
		name := part.FormName()
		if name == "file" {
			err = u.file(part)
		} else {
			err = u.field(name, part)
		}
		if err != nil {
			return err
		}
	}
	return invalid("", "The form has too many parts.")
}

// malformed explains what the reader of forms cannot read.
func malformed(err error) error {
	if _, ok := errors.AsType[*failure](err); ok {
		return err
	}
	if _, ok := errors.AsType[*governance.Error](err); ok {
		return err
	}
	return &failure{cause: &governance.Error{
		Code: governance.CodeInvalidRequest, Public: "The form ended early or is malformed.", Err: err,
	}, closing: true}
}

func (u *upload) field(name string, part io.Reader) error {
	value, err := io.ReadAll(io.LimitReader(part, maxFormField+1))
	switch {
	case err != nil:
		return malformed(err)
	case len(value) > maxFormField:
		return invalid(name, "The field "+name+" is too long.")
	}
	switch name {
	case "purpose":
		if u.purpose != "" {
			return invalid(name, "The field purpose is given more than once.")
		}
		if u.purpose = string(value); u.purpose != string(governance.PurposeBatch) {
			return invalid(name, "Only files with the purpose batch can be kept.")
		}
	case "expires_after[anchor]", "expires_after[seconds]":
		u.fields = append(u.fields, [2]string{name, string(value)})
	default:
		return invalid(name, "The form has a field that is unknown.")
	}
	return nil
}

func (u *upload) complete() error {
	switch {
	case u.lines.target == nil:
		return invalid("file", "The form has no file.")
	case u.purpose == "":
		return invalid("purpose", "The field purpose is missing.")
	}
	return nil
}

func (u *upload) file(part *multipart.Part) error {
	if u.lines.target != nil {
		return invalid("file", "The form has more than one file.")
	}
	u.name = part.FileName()
	if len(u.name) > maxFileName || clean(u.name) != nil || !utf8.ValidString(u.name) {
		return invalid("file", "The file's name must have at most 255 bytes of text.")
	}
	err := u.lines.carry(part, u.start)
	if err != nil {
		return malformed(err)
	}
	return nil
}

// start begins the request to the provider that the first line has chosen.
func (u *upload) start() (*bufio.Writer, error) {
	a, _ := u.c.g.account(u.lines.target)
	var from *io.PipeReader
	from, u.pipe = io.Pipe()
	u.out = multipart.NewWriter(u.pipe)
	ctx, cancel := context.WithCancel(u.c.ctx())
	u.cancel, u.sent = cancel, make(chan sentFile, 1)
	kind := u.out.FormDataContentType()
	go func() {
		response, _, err := a.ask(ctx, resource{
			method: http.MethodPost, kind: providers.OpenAIFiles, contentType: kind, body: from,
		})
		// Whatever it says, nothing more needs to come.
		_ = from.CloseWithError(errAnswered)
		if err != nil {
			u.sent <- sentFile{err: err}
			return
		}
		defer func() { _ = response.Body.Close() }()
		doc, _, err := a.read(response)
		u.sent <- sentFile{doc, err}
	}()
	if err := u.out.WriteField("purpose", string(governance.PurposeBatch)); err != nil {
		return nil, err
	}
	head := textproto.MIMEHeader{
		"Content-Disposition": {`form-data; name="file"; filename="requests.jsonl"`}, "Content-Type": {"application/jsonl"},
	}
	part, err := u.out.CreatePart(head)
	if err != nil {
		return nil, err
	}
	u.buffer = bufio.NewWriterSize(part, 64<<10)
	return u.buffer, nil
}

var errAnswered = errors.New("the provider has answered")

// stop ends what is still on its way.
func (u *upload) stop() {
	if u.sent == nil {
		return
	}
	_ = u.pipe.CloseWithError(errOver)
	u.cancel()
	<-u.sent
}

// whyStopped returns what the provider said, where the file could not go on because it had said something.
func (u *upload) whyStopped(err error) error {
	if u.sent == nil || !errors.Is(err, errAnswered) {
		return err
	}
	return u.refused(u.answer())
}

// answer waits for the provider's answer.
func (u *upload) answer() (*jsonedit.Document, error) {
	got := <-u.sent
	u.cancel()
	u.sent = nil
	return got.doc, got.err
}

func (u *upload) refused(_ *jsonedit.Document, err error) error {
	if err == nil {
		return &failure{cause: fault(governance.CodeUpstreamInvalid, "The provider answered before it had the file.")}
	}
	return u.c.orLeft(u.c.explain(err, nil))
}

// finish ends the form, and stores under what name the provider has the file.
func (u *upload) finish() error {
	err := u.buffer.Flush()
	for i := 0; err == nil && i < len(u.fields); i++ {
		err = u.out.WriteField(u.fields[i][0], u.fields[i][1])
	}
	if err == nil {
		err = u.out.Close()
	}
	if err == nil {
		err = u.pipe.Close()
	}
	if err != nil && !errors.Is(err, errAnswered) {
		return err
	}
	timer := time.AfterFunc(resourceTime, u.cancel)
	defer timer.Stop()
	doc, err := u.answer()
	if err != nil {
		return u.refused(nil, err)
	}
	upstream, _, err := doc.String("id")
	if err != nil || upstream == "" {
		return &failure{cause: fault(governance.CodeUpstreamInvalid, invalidMessage)}
	}
	f := governance.File{
		ID: ids.NewPublic(ids.File), Organization: u.c.Principal.Organization.Num, TargetNum: u.lines.target.Num,
		UpstreamID: upstream, Purpose: governance.PurposeBatch, Name: u.name, Bytes: u.lines.bytes, ExpiresAt: instantOf(doc, "expires_at"),
		Model: u.lines.model, Route: u.lines.route.name, Demand: u.lines.demand,
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(u.c.ctx()), u.c.g.cfg.Settle)
	defer cancel()
	if f, err = u.c.g.batches.AddFile(ctx, f); err != nil {
		return orUnavailable(err)
	}
	return u.c.reply(asFile(&f))
}

// instantOf reads a time of a resource, in seconds; zero: there is none.
func instantOf(doc *jsonedit.Document, name string) time.Time {
	n, ok, err := doc.Int(name)
	if err != nil || !ok || n <= 0 || n > 1<<40 {
		return time.Time{}
	}
	return time.Unix(n, 0)
}

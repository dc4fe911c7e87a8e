package gateway

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/internal/formdata"
	"github.com/tollgate-gateway/tollgate/providers"
)

const (
	maxFormMemory = 256 << 10 // bytes of a form that stay in memory; what is larger waits in a file
	formPiece     = 64 << 10  // bytes of it that are read at once
)

// spooled is the body of a form, on its way from the client to one upstream or several. It has to be whole before it is
// admitted, since what it asks for and how long its audio is may stand at its end; it need not be in memory.
type spooled struct {
	media    string // the client's Content-Type
	boundary string

	mu   sync.RWMutex
	text []byte   // nil once there is a file, or nothing any more
	file *os.File // without a name, so that nobody else finds it and nothing is left of it after a crash
	size int64
}

// Write appends a piece. Where no file can be made, as in a container that writes nowhere, the body stays in memory, which
// the budget of bodies bounds.
func (s *spooled) Write(piece []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil && len(s.text)+len(piece) > maxFormMemory {
		if err := s.toFile(); err != nil {
			return 0, err
		}
	}
	s.size += int64(len(piece))
	if s.file != nil {
		return s.file.Write(piece)
	}
	s.text = append(s.text, piece...)
	return len(piece), nil
}

func (s *spooled) toFile() error {
	file, err := os.CreateTemp("", "tollgate-form-*") // readable by its owner alone
	if err != nil {
		return nil //nolint:nilerr // it stays in memory
	}
	if err := os.Remove(file.Name()); err != nil {
		_ = file.Close() // nothing was written to it
		return nil       //nolint:nilerr // it would be found
	}
	s.file = file
	_, err = file.Write(s.text)
	s.text = nil
	return err
}

// ReadAt implements io.ReaderAt. It fails once the body was let go.
func (s *spooled) ReadAt(b []byte, at int64) (int, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	switch {
	case s.file != nil:
		return s.file.ReadAt(b, at)
	case s.text == nil:
		return 0, errBodyGone
	}
	return bytes.NewReader(s.text).ReadAt(b, at)
}

// drop lets the body go. Whoever still reads it fails.
func (s *spooled) drop() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		_ = s.file.Close() // it has no name, and nobody waits for its bytes
	}
	s.file, s.text = nil, nil
}

func (s *spooled) contentType() string {
	if s == nil {
		return ""
	}
	return s.media
}

// takesForm says which bodies a route takes. The estimate takes those of all the others.
func takesForm(d providers.Dialect) (may, must bool) {
	switch d {
	case providers.OpenAIImageEdits, "":
		return true, false
	case providers.OpenAIImageVariations, providers.OpenAITranscriptions, providers.OpenAITranslations:
		return true, true
	}
	return false, false
}

// readForm takes the body if it is a form on a route that takes some.
func (c *call) readForm() (isForm bool, err error) {
	media := c.r.Header.Get("Content-Type")
	boundary, isForm, err := formdata.Boundary(media)
	may, must := takesForm(c.route.dialect)
	switch {
	case must && !isForm:
		return false, invalid("", "This route takes a form: send multipart/form-data.")
	case !may || !isForm:
		return false, nil
	case err != nil:
		return true, unreadable(err)
	}
	c.form = &spooled{media: media, boundary: boundary}
	began := time.Now()
	err = c.spool()
	c.notOurs += time.Since(began)
	if err != nil {
		return true, err
	}
	c.bodyRead = true
	if c.Form, err = formdata.Parse(c.form, c.form.size, boundary); err != nil {
		if _, said := errors.AsType[*formdata.Error](err); !said {
			return true, noRoom(err)
		}
		return true, unreadable(err)
	}
	c.Model, _, _ = c.Form.String("model") // a form's text never fails
	if c.Model == "" {
		return true, invalid("model", "The field model is missing.")
	}
	if c.Stream, err = wantsStream(c.route.dialect, c.Form); err != nil {
		return true, unreadable(err)
	}
	return true, nil
}

// spool reads the body to its end. All of its bytes count as a body in flight, wherever they are kept.
func (c *call) spool() error {
	if err := c.g.takesBody(c.r); err != nil {
		return err
	}
	piece := make([]byte, formPiece)
	for {
		if err := c.rc.SetReadDeadline(time.Now().Add(c.g.cfg.BodyProgress)); err != nil {
			return err
		}
		n, err := c.r.Body.Read(piece)
		if c.form.size+int64(n) > c.g.cfg.MaxBody {
			return tooLarge()
		}
		if !c.g.bodies.take(int64(n)) {
			return &failure{cause: fault(governance.CodeGatewayOverloaded, "Too many large requests are in flight."), closing: true}
		}
		c.bodyBytes += int64(n)
		if _, err := c.form.Write(piece[:n]); err != nil {
			return noRoom(err)
		}
		switch {
		case errors.Is(err, io.EOF):
			return c.rc.SetReadDeadline(time.Time{})
		case err != nil:
			return unread(err)
		}
	}
}

// noRoom answers for a file that could not be kept, or not be found again.
func noRoom(err error) error {
	return &failure{cause: &governance.Error{
		Code: governance.CodeGatewayOverloaded, Public: "The gateway has no room for the request's files.", Err: err,
	}, closing: true}
}

// sum identifies the body, for a request that is sent again.
func (c *call) sum() (sum [sha256.Size]byte, err error) {
	if c.Form == nil {
		return sha256.Sum256(c.Body.Bytes()), nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, c.Form.Reader()); err != nil {
		return sum, fmt.Errorf("sum up form: %w", err)
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// demand reads what the request may use.
func (c *call) demand() (governance.Demand, error) {
	if c.Form != nil {
		return governance.DemandOfForm(c.Route, c.Form)
	}
	return governance.DemandOf(c.Route, c.Body)
}

// sendForm gives a request the client's form, in which nothing but the model is another.
func (c *call) sendForm(a *attempt, request *http.Request) error {
	form := c.Form
	open, size := form.Reader, form.Size()
	if a.target.UpstreamModel != c.Model {
		var err error
		if open, size, err = form.With("model", a.target.UpstreamModel, c.form.boundary); err != nil {
			return err
		}
	}
	request.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(open()), nil }
	request.Body, _ = request.GetBody()
	request.ContentLength = size
	return nil
}

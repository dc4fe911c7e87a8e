package gateway

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/providers"
)

// members are what a request says of itself, in JSON or in a form.
type members interface {
	governance.Members
	Bool(path ...string) (b, ok bool, err error)
}

// expect takes over from the demand what the answer itself will not tell: how much there is to speak or to rank, and the tier
// of a price that was asked for.
func (a *attempt) expect(d *governance.Demand) {
	for _, u := range []governance.Unit{governance.UnitCharacter, governance.UnitSearch} {
		a.ending.Counted[u] = d.Counted[u]
	}
	a.ending.Tier = d.EstimateTier()
}

// count takes over what a meter has counted by the piece.
func (a *attempt) count(f *providers.Facts) {
	for u, n := range f.Counted {
		if n > 0 {
			a.ending.Counted[u] = n
		}
	}
	if a.ending.Counted[governance.UnitImage] > 0 && f.Usage.ServiceTier != "" {
		a.ending.Tier = f.Usage.ServiceTier
	}
}

// mediaType returns the type of a body as its header says; "": it does not.
func mediaType(h http.Header) string {
	media, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return media
}

// isTranscript reports whether an answer is a transcript that is no JSON: plain text or subtitles.
func isTranscript(d providers.Dialect, h http.Header, body []byte) bool {
	if d != providers.OpenAITranscriptions && d != providers.OpenAITranslations {
		return false
	}
	media := mediaType(h)
	text := strings.HasPrefix(media, "text/") && media != "text/html" || media == "application/x-subrip"
	return text && len(body) > 0 && utf8.Valid(body)
}

// isSound reports whether an answer is speech that comes as it is played.
func isSound(d providers.Dialect, h http.Header) bool {
	media := mediaType(h)
	return d == providers.OpenAISpeech && (strings.HasPrefix(media, "audio/") || strings.HasPrefix(media, "video/") || media == "application/octet-stream")
}

const soundPiece = 32 << 10 // bytes of sound that are passed on at once

// relaySound passes speech on as it comes, piece by piece, so that it can be heard before it is whole. Its account is settled
// before its end: before the last piece where the length is known, else before the end of the chunks. Where it breaks off,
// the connection does too.
func (c *call) relaySound(a *attempt, response *http.Response, plain io.Reader) error {
	left := response.ContentLength
	if response.Uncompressed {
		left = -1
	}
	waiting := time.Now()
	piece := make([]byte, soundPiece)
	for begun := false; ; {
		n, err := plain.Read(piece)
		if n > 0 {
			a.silence.reset(c.atMost(c.g.cfg.Idle))
			a.ending.FirstByte = true
			if !begun {
				begun = true
				c.notOurs += time.Since(waiting)
				c.letBodyGo(a)
				c.answerHeaders(a, response.Header.Get("Content-Type"))
				if left > 0 {
					c.header("Content-Length", strconv.FormatInt(left, 10))
				}
				c.begin(response.StatusCode)
			}
			if left -= int64(n); left == 0 {
				c.heard(a)
			}
			if err := c.passSound(a, piece[:n]); err != nil {
				return err
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF) && !begun:
			return c.noEvents(a)
		case errors.Is(err, io.EOF):
			if c.heard(a); a.left.Load() {
				return errClientLeft
			}
			return nil
		case begun && c.open != a: // all of it has come
			return nil
		default:
			c.abort = c.abort || begun
			return c.broken(a, err)
		}
	}
}

// heard settles speech that is whole.
func (c *call) heard(a *attempt) {
	if c.open != a {
		return
	}
	a.ending.Terminal = true
	a.ending.ClientLeft = a.left.Load()
	c.settle(a, c.g.cfg.AnswerHold)
}

// passSound writes a piece to the client, unless it has left.
func (c *call) passSound(a *attempt, piece []byte) error {
	if a.left.Load() {
		return nil
	}
	if err := c.deliver(a, piece); err != nil {
		return err
	}
	return c.deliverNow(a)
}

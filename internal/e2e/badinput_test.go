package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What may become of a hostile request.
const (
	passes  = http.StatusOK         // it is the provider's business
	refused = http.StatusBadRequest // nothing is forwarded, nothing is stored
	either  = 0                     // refused in any way that is the client's fault, or passed on
)

// hostile is a fleet with one gateway that is shown bad requests, and what it has let through.
type hostile struct {
	*fleet

	g       *process
	key     string
	allowed int64 // calls that were to reach the upstream
}

func startHostile(t *testing.T) *hostile {
	t.Helper()
	f := startFleet(t, fleetOptions{})
	f.addModel("weird", "plain")
	key, _ := f.issue()
	return &hostile{fleet: f, g: f.gateways[0], key: key}
}

// judge checks one answer.
func (h *hostile) judge(name string, want int, a answer) {
	h.t.Helper()
	shown := a.body[:min(len(a.body), 300)]
	if want != either {
		require.Equal(h.t, want, a.status, "%s: %s", name, shown)
	} else {
		require.Less(h.t, a.status, 500, "%s: %s", name, shown)
	}
	switch {
	case a.status == http.StatusOK:
		h.allowed++
	default:
		requireErrorShape(h.t, name, a)
	}
}

// requireErrorShape checks the body of an error of the data plane (contract, section 4).
func requireErrorShape(t *testing.T, name string, a answer) {
	t.Helper()
	require.Equal(t, "application/json", a.header.Get("Content-Type"), "%s: %s", name, a.body)
	var body struct {
		Error struct {
			Message string  `json:"message"`
			Type    string  `json:"type"`
			Code    string  `json:"code"`
			Param   *string `json:"param"`
		} `json:"error"`
	}
	dec := json.NewDecoder(bytes.NewReader(a.body))
	require.NoError(t, dec.Decode(&body), "%s: %s", name, a.body)
	require.NotEmpty(t, body.Error.Message, "%s: %s", name, a.body)
	require.NotEmpty(t, body.Error.Type, "%s: %s", name, a.body)
	require.NotEmpty(t, body.Error.Code, "%s: %s", name, a.body)
	require.NotEmpty(t, a.header.Get("x-request-id"), name)
}

// finish finds exactly the rows and upstream calls that were to be there, and a gateway that still works.
func (h *hostile) finish() {
	h.t.Helper()
	a := must(h.t)(h.g.call(h.t.Context(), h.key, "/v1/chat/completions", helloChat))
	require.Equal(h.t, http.StatusOK, a.status, "%s", a.body)
	h.allowed++
	require.Equal(h.t, h.allowed, h.mock.Counts().Count, "what was refused was not forwarded")
	h.requireBooksBalance()
	require.Len(h.t, h.rows(), int(h.allowed), "what was refused has no row")
}

// Every member that the gateway reads, in every form that it cannot mean, and what it must leave to the provider.
func TestBadInput_Bodies(t *testing.T) {
	t.Parallel()
	h := startHostile(t)
	const messages = `"messages":[{"role":"user","content":"hello"}]`
	with := func(members string) string { return `{"model":"plain",` + messages + `,` + members + `}` }
	long := strings.Repeat("x", 10<<20)
	type bad struct {
		name, path, body string
		want             int
	}
	cases := []bad{
		{"Empty", "", "", refused},
		{"Blank", "", " \n", refused},
		{"Null", "", "null", refused},
		{"Array", "", "[]", refused},
		{"String", "", `"plain"`, refused},
		{"Number", "", "1", refused},
		{"Truncated", "", `{"model":"plain","messages":[{"role":"us`, refused},
		{"Trailing", "", helloChat + "{}", refused},
		{"TrailingText", "", helloChat + " x", refused},
		{"ByteOrderMark", "", "\ufeff" + helloChat, refused},
		{"InvalidUTF8", "", strings.Replace(helloChat, "hello", "h\xff", 1), refused},
		{"UTF16", "", "{\x00\"\x00m\x00", refused},
		{"RawNUL", "", strings.Replace(helloChat, "hello", "h\x00", 1), refused},
		{"SingleQuotes", "", strings.ReplaceAll(helloChat, `"`, `'`), refused},
		{"Comment", "", "/* */" + helloChat, refused},
		{"Form", "", "model=plain&messages=hello", refused},
		{"ModelMissing", "", `{` + messages + `}`, refused},
		{"ModelNull", "", `{"model":null,` + messages + `}`, refused},
		{"ModelEmpty", "", `{"model":"",` + messages + `}`, refused},
		{"ModelNumber", "", `{"model":1,` + messages + `}`, refused},
		{"ModelArray", "", `{"model":["plain"],` + messages + `}`, refused},
		{"ModelObject", "", `{"model":{"a":1},` + messages + `}`, refused},
		{"ModelNUL", "", `{"model":"pl\u0000ain",` + messages + `}`, either},
		{"ModelLoneSurrogate", "", `{"model":"\ud800",` + messages + `}`, either},
		{"ModelSQL", "", `{"model":"' OR pg_sleep(8)--",` + messages + `}`, http.StatusNotFound},
		{"ModelPath", "", `{"model":"../../etc/passwd",` + messages + `}`, http.StatusNotFound},
		{"ModelLong", "", `{"model":"` + long + `",` + messages + `}`, either},
		{"ModelTwice", "", `{"model":"plain","model":"weird",` + messages + `}`, refused},
		{"ModelTwiceEscaped", "", `{"model":"plain","mod\u0065l":"weird",` + messages + `}`, refused},
		{"ModelOtherCase", "", `{"Model":"plain",` + messages + `}`, refused},
		{"ModelBothCases", "", `{"model":"plain","MODEL":"weird",` + messages + `}`, refused},
		{"MessagesMissing", "", `{"model":"plain"}`, either},
		{"MessagesNull", "", `{"model":"plain","messages":null}`, either},
		{"MessagesString", "", `{"model":"plain","messages":"hello"}`, either},
		{"MessagesNested", "", `{"model":"plain","messages":[[[[1]]]]}`, either},
		{"MessageTwice", "", `{"model":"plain","messages":[{"role":"user","role":"system","content":"x"}]}`, refused},
		{"StreamString", "", with(`"stream":"yes"`), refused},
		{"StreamNumber", "", with(`"stream":1`), refused},
		{"StreamNull", "", with(`"stream":null`), passes},
		{"StreamOtherCase", "", with(`"Stream":true`), refused},
		{"StreamOptionsNumber", "", with(`"stream":true,"stream_options":5`), refused},
		{"StreamOptionsArray", "", with(`"stream":true,"stream_options":[]`), refused},
		{"StreamOptionsNull", "", with(`"stream":true,"stream_options":null`), passes},
		{"MaxTokensNegative", "", with(`"max_tokens":-1`), refused},
		{"MaxTokensHuge", "", with(`"max_tokens":1e309`), refused},
		{"MaxTokensOverInt64", "", with(`"max_tokens":9223372036854775808`), refused},
		{"MaxTokensString", "", with(`"max_tokens":"5"`), refused},
		{"MaxTokensFraction", "", with(`"max_tokens":1.5`), refused},
		{"MaxTokensObject", "", with(`"max_tokens":{}`), refused},
		{"MaxTokensNaN", "", with(`"max_tokens":NaN`), refused},
		{"MaxTokensInfinity", "", with(`"max_tokens":Infinity`), refused},
		{"MaxTokensHex", "", with(`"max_tokens":0x10`), refused},
		{"MaxTokensLeadingZero", "", with(`"max_tokens":010`), refused},
		{"MaxTokensNull", "", with(`"max_tokens":null`), passes},
		{"MaxTokensOtherCase", "", with(`"max_Tokens":5`), refused},
		{"MaxCompletionTokensNegative", "", with(`"max_completion_tokens":-5`), refused},
		{"NZero", "", with(`"n":0`), either},
		{"NNegative", "", with(`"n":-1`), refused},
		{"NHuge", "", with(`"n":1e309`), refused},
		{"NString", "", with(`"n":"2"`), refused},
		{"UserNumber", "", with(`"user":5`), refused},
		{"UserNUL", "", with(`"user":"a\u0000b"`), refused},
		{"UserLong", "", with(`"user":"` + strings.Repeat("u", 257) + `"`), refused},
		{"UserSQL", "", with(`"user":"'; DROP TABLE tollgate.virtual_keys; --"`), passes},
		{"MetadataNUL", "", with(`"metadata":{"a":"\u0000"}`), refused},
		{"MetadataLong", "", with(`"metadata":{"a":"` + strings.Repeat("m", 5000) + `"}`), passes},
		{"Unknown", "", with(`"zzz_unknown":{"deep":[1,2.50,1e309,-0,null]}`), passes},
		{"TemperatureHuge", "", with(`"temperature":1e309`), passes},
		{"LoneSurrogateInContent", "", `{"model":"plain","messages":[{"role":"user","content":"\ud800"}]}`, passes},
		{"NULInContent", "", `{"model":"plain","messages":[{"role":"user","content":"a\u0000b"}]}`, passes},
		{"LongContent", "", `{"model":"plain","messages":[{"role":"user","content":"` + long + `"}]}`, passes},
		{"Deep", "", with(`"x":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)), refused},
		{"DeepOpen", "", strings.Repeat("[", 100_000), refused},
		{"DeepObjects", "", with(`"x":` + strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000)), refused},
		{"ManyElements", "", with(`"x":[` + strings.Repeat("1,", 1_000_000) + "1]"), refused},
		{"ManyNames", "", with(manyNames(10_001)), refused},
		{"LongName", "", with(`"` + long + `":1`), passes},
		{"Embeddings/InputMissing", "/v1/embeddings", `{"model":"plain"}`, either},
		{"Embeddings/InputNumber", "/v1/embeddings", `{"model":"plain","input":1}`, either},
		{"Embeddings/InputNested", "/v1/embeddings", `{"model":"plain","input":[[1,2],["x"],{}]}`, either},
		{"Completions/PromptObject", "/v1/completions", `{"model":"plain","prompt":{}}`, either},
		{"Completions/BestOf", "/v1/completions", `{"model":"plain","prompt":"x","best_of":1e309}`, refused},
		{"Completions/BestOfNegative", "/v1/completions", `{"model":"plain","prompt":"x","best_of":-3}`, refused},
		{"Responses/MaxOutput", "/v1/responses", `{"model":"plain","input":"x","max_output_tokens":-1}`, refused},
		{"Responses/MaxOutputString", "/v1/responses", `{"model":"plain","input":"x","max_output_tokens":"many"}`, refused},
		{"Moderations/InputNumber", "/v1/moderations", `{"model":"plain","input":7}`, either},
		{"Estimate/Empty", "/v1/estimate", ``, refused},
		{"Estimate/Array", "/v1/estimate", `[]`, refused},
	}
	for _, c := range cases {
		if c.path == "" {
			c.path = "/v1/chat/completions"
		}
		began := time.Now()
		a := must(t)(h.g.call(t.Context(), h.key, c.path, c.body))
		h.judge(c.name, c.want, a)
		require.Less(t, time.Since(began), 15*time.Second, c.name)
	}
	huge := must(t)(h.g.call(t.Context(), h.key, "/v1/chat/completions", with(`"x":"`+strings.Repeat("x", 35<<20)+`"`)))
	h.judge("TooLarge", http.StatusRequestEntityTooLarge, huge)
	require.Equal(t, "payload_too_large", huge.code())
	h.finish()
}

func manyNames(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"n%d":1,`, i)
	}
	return strings.TrimSuffix(b.String(), ",")
}

// Every header that the gateway reads.
func TestBadInput_Headers(t *testing.T) {
	t.Parallel()
	h := startHostile(t)
	long := strings.Repeat("x", 5000)
	for _, c := range []struct {
		name, header, value string
		want                int
	}{
		{"MaxCostNaN", "X-Tollgate-Max-Cost", "NaN", refused},
		{"MaxCostInfinity", "X-Tollgate-Max-Cost", "Infinity", refused},
		{"MaxCostNegative", "X-Tollgate-Max-Cost", "-1", refused},
		{"MaxCostExponent", "X-Tollgate-Max-Cost", "1e309", refused},
		{"MaxCostHex", "X-Tollgate-Max-Cost", "0x10", refused},
		{"MaxCostEmpty", "X-Tollgate-Max-Cost", "", refused},
		{"MaxCostHuge", "X-Tollgate-Max-Cost", strings.Repeat("9", 400), refused},
		{"MaxCostText", "X-Tollgate-Max-Cost", "a lot", refused},
		{"MaxCostBlank", "X-Tollgate-Max-Cost", "1 2", refused},
		{"DryRunYes", "X-Tollgate-Dry-Run", "yes", refused},
		{"DryRunOne", "X-Tollgate-Dry-Run", "1", refused},
		{"DryRunEmpty", "X-Tollgate-Dry-Run", "", refused},
		{"TagsWithoutValue", "X-Tollgate-Tags", "alone", refused},
		{"TagsTwice", "X-Tollgate-Tags", "a=1,a=2", refused},
		{"TagsLong", "X-Tollgate-Tags", "a=" + long, refused},
		{"TagsMany", "X-Tollgate-Tags", strings.Repeat("a=1,", 100), refused},
		{"TagsSQL", "X-Tollgate-Tags", "a='||pg_sleep(8)||'", passes},
		{"MetadataText", "X-Tollgate-Metadata", "x", refused},
		{"MetadataArray", "X-Tollgate-Metadata", "[]", refused},
		{"MetadataOpen", "X-Tollgate-Metadata", `{"a":`, refused},
		{"MetadataNUL", "X-Tollgate-Metadata", `{"a":"\u0000"}`, refused},
		{"MetadataLong", "X-Tollgate-Metadata", `{"a":"` + long + `"}`, refused},
		{"MetadataDeep", "X-Tollgate-Metadata", `{"a":` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + `}`, either},
		{"MetadataHugeNumber", "X-Tollgate-Metadata", `{"a":1e99999}`, either},
		{"MetadataLoneSurrogate", "X-Tollgate-Metadata", `{"a":"\ud800"}`, either},
		{"EndUserEmpty", "X-Tollgate-End-User", "", refused},
		{"EndUserLong", "X-Tollgate-End-User", strings.Repeat("u", 257), refused},
		{"EndUserInvalidUTF8", "X-Tollgate-End-User", "\xff\xfe", refused},
		{"EndUserSQL", "X-Tollgate-End-User", "x' OR '1'='1", passes},
		{"UnknownOfOurs", "X-Tollgate-Budget", "1", refused},
		{"UpstreamOfOurs", "X-Tollgate-Base-Url", "http://127.0.0.1:1", refused},
		{"IdempotencyLong", "Idempotency-Key", strings.Repeat("k", 256), refused},
		{"IdempotencyEmpty", "Idempotency-Key", "", refused},
		{"IdempotencyInvalidUTF8", "Idempotency-Key", "\xff", refused},
		{"IdempotencySQL", "Idempotency-Key", "'; SELECT pg_sleep(8); --", passes},
		{"RequestIDLong", "X-Request-Id", long, passes},
		{"RequestIDMarkup", "X-Request-Id", `"><script>`, passes},
		{"TraceparentText", "Traceparent", "nonsense", passes},
		{"TraceparentLong", "Traceparent", long, passes},
		{"ContentTypeNonsense", "Content-Type", "////", either},
		{"ContentEncodingGzip", "Content-Encoding", "gzip", http.StatusUnsupportedMediaType},
		{"ContentEncodingUnknown", "Content-Encoding", "zzz", http.StatusUnsupportedMediaType},
		{"AcceptNonsense", "Accept", "\xff", passes},
		{"CredentialLong", "Authorization", "Bearer sk-tg-" + long, http.StatusUnauthorized},
		{"CredentialSQL", "Authorization", "Bearer ' OR pg_sleep(8)--", http.StatusUnauthorized},
		{"CredentialNUL", "Authorization", "Bearer sk-tg-\xff", http.StatusUnauthorized},
		{"Upgrade", "Upgrade", "websocket", http.StatusNotImplemented},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.g.baseURL+"/v1/chat/completions", strings.NewReader(helloChat))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+h.key)
		req.Header.Set("Content-Type", "application/json")
		req.Header[c.header] = []string{c.value}
		began := time.Now()
		a := must(t)(do(req))
		if c.want == http.StatusNotImplemented { // the one 5xx that is a client's fault (ruling 42)
			require.Equal(t, c.want, a.status, c.name)
			requireErrorShape(t, c.name, a)
			continue
		}
		h.judge(c.name, c.want, a)
		require.Less(t, time.Since(began), 5*time.Second, "%s: no payload is run by the database", c.name)
		require.NotContains(t, a.header.Get("x-request-id"), "<", "a request id is ours")
	}
	for _, query := range []string{
		"/v1/usage?group_by=' OR pg_sleep(8)--", "/v1/usage?group_by=nonsense", "/v1/usage?from=yesterday", "/v1/receipts/' OR 1=1--",
		"/v1/receipts/00000000-0000-0000-0000-000000000000", "/v1/models/%00", "/v1/models/' OR 1=1", "/v1/usage?%zz=1", "/v1/key?x=%ff",
	} {
		u := strings.NewReplacer(" ", "%20", "'", "%27").Replace(query)
		a := must(t)(h.g.get(t.Context(), h.key, u))
		require.Less(t, a.status, 500, "%s: %s", u, a.body)
		if a.status != http.StatusOK {
			requireErrorShape(t, u, a)
		}
	}
	h.finish()
}

// wire is one request as bytes. $KEY, $HOST and $PATH are replaced.
type wire struct{ name, text string }

// malformed are requests that no server should make sense of, or that two servers could read differently.
func malformed() []wire {
	const (
		post = "POST $PATH HTTP/1.1\r\nHost: $HOST\r\nAuthorization: Bearer $KEY\r\nContent-Type: application/json\r\n"
		body = `{"model":"plain","messages":[{"role":"user","content":"hello"}]}`
	)
	length := fmt.Sprintf("Content-Length: %d\r\n", len(body))
	whole := length + "\r\n" + body
	line := func(l string) string { return l + "\r\nHost: $HOST\r\nAuthorization: Bearer $KEY\r\n" + whole }
	path := func(p string) string { return line("POST " + p + " HTTP/1.1") }
	header := func(h string) string { return post + h + "\r\n" + whole }
	return []wire{
		{"Nothing", "\r\n\r\n"},
		{"Text", "hello\r\n\r\n"},
		{"Binary", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"},
		{"NULs", strings.Repeat("\x00", 64) + "\r\n\r\n"},
		{"HTTP2Preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
		{"NoVersion", line("POST $PATH")},
		{"VersionZeroNine", "GET $PATH\r\n\r\n"},
		{"VersionThree", line("POST $PATH HTTP/3.0")},
		{"VersionText", line("POST $PATH HTTP/one.one")},
		{"VersionSpaces", line("POST $PATH  HTTP/1.1")},
		{"MethodEmpty", line(" $PATH HTTP/1.1")},
		{"MethodBracket", line("PO(ST $PATH HTTP/1.1")},
		{"MethodNUL", line("PO\x00ST $PATH HTTP/1.1")},
		{"MethodLower", line("post $PATH HTTP/1.1")},
		{"MethodUnknown", line("BREW $PATH HTTP/1.1")},
		{"MethodTrace", line("TRACE $PATH HTTP/1.1")},
		{"MethodConnect", line("CONNECT 127.0.0.1:1 HTTP/1.1")},
		{"MethodConnectPath", line("CONNECT $PATH HTTP/1.1")},
		{"AbsoluteForm", path("http://169.254.169.254/latest/meta-data/")},
		{"AbsoluteFormOwn", path("http://$HOST$PATH")},
		{"AbsoluteFormOther", path("ftp://$HOST$PATH")},
		{"AsteriskForm", path("*")},
		{"RelativePath", path("v1/chat/completions")},
		{"PathEmptySegment", path("//v1/chat/completions")},
		{"PathInnerEmptySegment", path("/v1//chat/completions")},
		{"PathDots", path("/v1/../v1/chat/completions")},
		{"PathDotsEscaped", path("/v1/%2e%2e/v1/chat/completions")},
		{"PathDot", path("/v1/./chat/completions")},
		{"PathSlashEscaped", path("/v1%2fchat%2fcompletions")},
		{"PathSlashEscapedUpper", path("/v1%2Fchat/completions")},
		{"PathDoubleEscaped", path("/v1%252fchat/completions")},
		{"PathSemicolon", path("/v1/chat/completions;admin=1")},
		{"PathSemicolonEscaped", path("/v1/chat/completions%3badmin")},
		{"PathBackslash", path("/v1\\chat\\completions")},
		{"PathNUL", path("/v1/chat/completions%00")},
		{"PathBadEscape", path("/v1/chat/%zz")},
		{"PathFragment", path("$PATH#x")},
		{"PathUpper", path("/V1/CHAT/COMPLETIONS")},
		{"PathTrailingSlash", path("$PATH/")},
		{"PathNewline", path("/v1/chat%0acompletions")},
		{"PathRawHigh", path("/v1/chat/\xff")},
		{"PathLong", path("/" + strings.Repeat("a", 70_000))},
		{"QueryLong", path("/v1/nothing?" + strings.Repeat("a", 70_000))},
		{"NoHost", "POST $PATH HTTP/1.1\r\nAuthorization: Bearer $KEY\r\n" + whole},
		{"TwoHosts", header("Host: other")},
		{"HostNonsense", "POST $PATH HTTP/1.1\r\nHost: a b\r\nAuthorization: Bearer $KEY\r\n" + whole},
		{"HeaderNoColon", header("nocolon")},
		{"HeaderSpaceBeforeColon", header("X-Space : 1")},
		{"HeaderNameEmpty", header(": 1")},
		{"HeaderNameNonsense", header("X(1): 1")},
		{"HeaderNUL", header("X-A: a\x00b")},
		{"HeaderBareCR", header("X-A: a\rX-B: b")},
		{"HeaderFirstFolded", "POST $PATH HTTP/1.1\r\n Host: $HOST\r\n" + whole},
		{"HeadersLarge", header("X-Large: " + strings.Repeat("x", 80_000))},
		{"HeadersMany", header(strings.TrimSuffix(strings.Repeat("X-Many: yyyyyyyyyyyyyyyyyyyyyyyy\r\n", 4000), "\r\n"))},
		{"TwoAuthorizations", header("Authorization: Bearer $KEY")},
		{"LengthTwice", post + length + "Content-Length: 5\r\n\r\n" + body},
		{"LengthNegative", post + "Content-Length: -1\r\n\r\n" + body},
		{"LengthPlus", post + fmt.Sprintf("Content-Length: +%d\r\n\r\n", len(body)) + body},
		{"LengthHex", post + "Content-Length: 0x40\r\n\r\n" + body},
		{"LengthText", post + "Content-Length: many\r\n\r\n" + body},
		{"LengthHuge", post + "Content-Length: 99999999999999999999\r\n\r\n" + body},
		{"LengthOverLimit", post + "Content-Length: 1000000000000\r\n\r\n" + body},
		{"LengthTooLong", post + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(body)+10) + body},
		{"LengthTooShort", post + "Content-Length: 10\r\n\r\n" + body},
		{"LengthList", post + fmt.Sprintf("Content-Length: %d, %d\r\n\r\n", len(body), len(body)+1) + body},
		{"LengthAndChunked", post + length + "Transfer-Encoding: chunked\r\n\r\n" + "0\r\n\r\n"},
		{"ChunkedUnknown", post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"},
		{"ChunkedTwice", post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n"},
		{"ChunkedObfuscated", post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"},
		{"ChunkedVerticalTab", post + "Transfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n"},
		{"ChunkSizeNonsense", post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n" + body + "\r\n0\r\n\r\n"},
		{"ChunkSizeHuge", post + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n" + body},
		{"ChunkSizeNegative", post + "Transfer-Encoding: chunked\r\n\r\n-5\r\n" + body},
		{"ChunkUnfinished", post + "Transfer-Encoding: chunked\r\n\r\n40\r\n" + body[:20]},
		{"ChunkEndMissing", post + "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n", len(body)) + body + "XX0\r\n\r\n"},
		{"ChunkExtensionLong", post + "Transfer-Encoding: chunked\r\n\r\n1;" + strings.Repeat("e", 20_000) + "\r\n{\r\n0\r\n\r\n"},
		{"UpgradeWebSocket", header("Connection: Upgrade\r\nUpgrade: websocket")},
		{"UpgradeH2C", header("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ")},
		{"ExpectNonsense", header("Expect: 200-nothing")},
		{"EncodingGzip", header("Content-Encoding: gzip")},
		{"HTTP10WithoutLength", "POST $PATH HTTP/1.0\r\nAuthorization: Bearer $KEY\r\n\r\n" + body},
		{"HTTP10Chunked", "POST $PATH HTTP/1.0\r\nAuthorization: Bearer $KEY\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
	}
}

// say writes bytes to a listener, half-closes, and reads the first answer; status 0: the connection was closed without one.
func say(t *testing.T, base, text string) answer {
	t.Helper()
	u, err := url.Parse(base)
	require.NoError(t, err)
	conn, err := net.Dial("tcp", u.Host)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(15*time.Second)))
	_, _ = io.WriteString(conn, text) // the server may have had enough before the end
	_ = conn.(*net.TCPConn).CloseWrite()
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		require.NotErrorIs(t, err, net.ErrClosed)
		var late net.Error
		if ok := asNetError(err, &late); ok {
			require.False(t, late.Timeout(), "the server neither answers nor closes")
		}
		return answer{}
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return answer{r.StatusCode, r.Header, nil} // reset behind the answer, since the request was not read to its end
	}
	return answer{r.StatusCode, r.Header, body}
}

func asNetError(err error, into *net.Error) bool {
	n, ok := err.(net.Error) //nolint:errorlint // bare from the connection
	if ok {
		*into = n
	}
	return ok
}

// Requests that are wrong as HTTP, on both listeners: an answer that says so, or a closed connection; nothing is forwarded,
// nothing is stored, and the next client is served.
func TestBadInput_MalformedHTTP(t *testing.T) {
	t.Parallel()
	h := startHostile(t)
	all := malformed()
	require.GreaterOrEqual(t, len(all), 60)
	orgs := h.organizations()
	for _, l := range []struct{ name, base, key, path string }{
		{"traffic", h.g.baseURL, h.key, "/v1/chat/completions"},
		{"control", h.control.admin, adminToken, "/admin/v1/organizations"},
	} {
		u, err := url.Parse(l.base)
		require.NoError(t, err)
		var said sync.Map
		var talks sync.WaitGroup
		for _, w := range all {
			talks.Go(func() {
				text := strings.NewReplacer("$KEY", l.key, "$HOST", u.Host, "$PATH", l.path).Replace(w.text)
				said.Store(w.name, say(t, l.base, text))
			})
		}
		talks.Wait()
		statuses := map[int]int{}
		for _, w := range all {
			v, ok := said.Load(w.name)
			require.True(t, ok, w.name)
			a := v.(answer)
			name := l.name + " " + w.name
			statuses[a.status]++
			switch {
			case a.status == 0: // closed
			case a.status == http.StatusNotImplemented || a.status == http.StatusHTTPVersionNotSupported: // what HTTP calls them
			default:
				require.GreaterOrEqual(t, a.status, 400, "%s: %v %s", name, a.header, a.body)
				require.Less(t, a.status, 500, "%s: %s", name, a.body)
			}
			switch a.header.Get("Content-Type") {
			case "application/json":
				requireErrorShape(t, name, a)
			case "application/problem+json":
				var p object
				require.NoError(t, json.Unmarshal(a.body, &p), "%s: %s", name, a.body)
				require.NotEmpty(t, p["code"], name)
			case "": // closed
			default: // by net/http, before there was a request that anybody could have seen
				require.Contains(t, []string{"text/plain; charset=utf-8", "text/plain"}, a.header.Get("Content-Type"), "%s: %s", name, a.body)
				require.Less(t, len(a.body), 200, "%s: %s", name, a.body)
			}
			require.NotContains(t, string(a.body), l.key, name)
		}
		t.Logf("%s: %d malformed requests, answers by status: %v", l.name, len(all), statuses)
	}
	require.Equal(t, orgs, h.organizations(), "nothing is stored")

	// HTTP allows a server to join a folded header; what is in its second line must not become a header then.
	folded := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\nX-A: a\r\n  Authorization: Bearer %s\r\n\r\n%s",
		strings.TrimPrefix(h.g.baseURL, "http://"), len(helloChat), h.key, helloChat)
	require.Equal(t, http.StatusUnauthorized, say(t, h.g.baseURL, folded).status)
	h.finish()
}

func (h *hostile) organizations() int {
	h.t.Helper()
	status, page := h.admin(http.MethodGet, "organizations?limit=250", nil)
	require.Equal(h.t, http.StatusOK, status)
	items, _ := page["items"].([]any)
	return len(items)
}

// A client that sends its headers drop by drop is dropped itself.
func TestBadInput_SlowHeadersAreCut(t *testing.T) {
	t.Parallel()
	h := startHostile(t)
	var waits sync.WaitGroup
	for _, base := range []string{h.g.baseURL, h.control.admin, h.g.ops} {
		u, err := url.Parse(base)
		require.NoError(t, err)
		conn, err := net.Dial("tcp", u.Host)
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(15*time.Second)))
		_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
		require.NoError(t, err)
		waits.Go(func() {
			_, err := io.ReadAll(conn) // to the end, which the server makes
			if late := net.Error(nil); asNetError(err, &late) && late.Timeout() {
				t.Errorf("%s still waits", base)
			}
			_ = conn.Close()
		})
	}
	waits.Wait()
	h.finish()
}

// F143, T18: whatever a caller writes, nothing but the configured upstream is dialled, with nothing but the headers of the
// list and the provider's own credential.
func TestF143_CallersChooseNoUpstreamAndSmuggleNoHeader(t *testing.T) {
	t.Parallel()
	h := startHostile(t)
	trap, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	dialled := make(chan struct{}, 1)
	go func() {
		for {
			conn, err := trap.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
			select {
			case dialled <- struct{}{}:
			default:
			}
		}
	}()
	defer func() { _ = trap.Close() }()
	evil := "http://" + trap.Addr().String()
	names := []string{"api_base", "base_url", "baseURL", "api_key", "apiKey", "endpoint", "url", "host", "proxy", "custom_llm_provider", "deployment", "organization", "extra_headers", "headers"}
	var members []string
	for _, n := range names {
		members = append(members, fmt.Sprintf("%q:%q", n, evil))
	}
	inner := strings.Join(members, ",")
	for _, body := range []string{
		`{"model":"plain","messages":[{"role":"user","content":"hello"}],` + inner + `}`,
		`{"model":"plain","messages":[{"role":"user","content":"hello"}],"extra_body":{` + inner + `},"litellm_params":{` + inner + `}}`,
		`{"model":"plain","messages":[{"role":"user","content":"hello",` + inner + `}],"metadata":{` + inner + `}}`,
		`{"model":"plain","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + evil + `/x.png"}}]}]}`,
	} {
		h.judge(body[:60], passes, must(t)(h.g.call(t.Context(), h.key, "/v1/chat/completions", body)))
	}
	for _, n := range names {
		h.judge(n, passes, must(t)(h.g.call(t.Context(), h.key, "/v1/chat/completions?"+n+"="+url.QueryEscape(evil), helloChat)))
	}
	h.judge("model as URL", http.StatusNotFound, must(t)(h.g.call(t.Context(), h.key, "/v1/chat/completions", strings.Replace(helloChat, "plain", evil, 1))))

	smuggled := http.Header{}
	for _, n := range []string{
		"Api-Base", "Base-Url", "X-Base-Url", "X-Upstream", "X-Forwarded-Host", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-User",
		"Forwarded", "X-Real-Ip", "X-Original-Url", "X-Rewrite-Url", "X-Http-Method-Override", "Via", "Cookie", "Set-Cookie", "Origin", "Referer",
		"Proxy-Authorization", "Proxy-Connection", "X-Remote-User", "X-User", "X-User-Id", "X-Org-Id", "X-Tenant", "X-Auth-Token", "X-Amz-Security-Token",
		"X-Amz-Date", "X-Goog-User-Project", "X-Goog-Iam-Authorization-Token", "X-Ms-Client-Request-Id", "Openai-Organization", "Openai-Project",
		"Anthropic-Dangerous-Direct-Browser-Access", "X-Stainless-Lang", "X-Stainless-Retry-Count", "X-Litellm-Api-Key", "X-Litellm-Tags",
		"Helicone-Auth", "Helicone-Target-Url", "Cf-Access-Jwt-Assertion", "Cf-Connecting-Ip", "X-Client-Cert", "X-Ssl-Client-Verify", "If-Match",
		"If-None-Match", "Range", "Te", "Trailer-Of-Ours", "X-Custom", "Authorization_", "X_Api_Key", "Api_Key", "X-Portkey-Config", "X-Portkey-Provider",
		"Metadata-Flavor", "X-Aws-Ec2-Metadata-Token", "Host_", "Dnt", "Early-Data",
	} {
		smuggled.Set(n, evil)
	}
	require.GreaterOrEqual(t, len(smuggled), 58)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.g.baseURL+"/v1/chat/completions", strings.NewReader(helloChat))
	require.NoError(t, err)
	req.Header = smuggled.Clone()
	req.Header.Set("Authorization", "Bearer "+h.key)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Tollgate-End-User", "visible-to-tollgate")
	req.Header.Set("Idempotency-Key", "once")
	req.Header.Set("X-Request-Id", "client-label")
	h.judge("smuggled headers", passes, must(t)(do(req)))

	allowed := map[string]bool{}
	for _, n := range []string{"Accept", "Accept-Encoding", "Authorization", "Content-Length", "Content-Type", "Openai-Beta", "Traceparent", "Tracestate", "User-Agent"} {
		allowed[n] = true
	}
	upstream, err := url.Parse(h.upstream)
	require.NoError(t, err)
	for _, r := range h.mock.Log().Requests {
		for name, values := range r.Header {
			require.True(t, allowed[name], "the provider saw the header %s: %q", name, values)
			for _, v := range values {
				require.NotContains(t, v, upstreamless(evil), name)
				require.NotContains(t, v, h.key, name)
			}
		}
		require.Equal(t, "Bearer sk-upstream-marker", r.Header.Get("Authorization"))
		require.Equal(t, "/v1/chat/completions", r.Path, "a client's query ends here")
	}
	require.NotEmpty(t, upstream.Host)
	select {
	case <-dialled:
		require.Fail(t, "the caller's address was dialled")
	default:
	}
	h.finish()
}

func upstreamless(address string) string { return strings.TrimPrefix(address, "http://") }

// openAPI is as much of the admin API's own description as the test needs to find every member of every body.
type openAPI struct {
	Paths map[string]map[string]struct {
		OperationID string `json:"operationId"`
		Parameters  []struct {
			Name, In string
		} `json:"parameters"`
		RequestBody struct {
			Content map[string]struct {
				Schema schema `json:"schema"`
			} `json:"content"`
		} `json:"requestBody"`
	} `json:"paths"`
	Components struct {
		Schemas map[string]schema `json:"schemas"`
	} `json:"components"`
}

type schema struct {
	Ref        string            `json:"$ref"`
	Type       any               `json:"type"`
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
	Items      *schema           `json:"items"`
	Enum       []any             `json:"enum"`
	Examples   []any             `json:"examples"`
}

func (d *openAPI) resolve(s schema) schema {
	for s.Ref != "" {
		s = d.Components.Schemas[strings.TrimPrefix(s.Ref, "#/components/schemas/")]
	}
	return s
}

func (s schema) is(kind string) bool {
	switch t := s.Type.(type) {
	case string:
		return t == kind
	case []any:
		return slices.Contains(t, any(kind))
	}
	return false
}

// sample makes a value that fits a schema as far as the schema says.
func (d *openAPI) sample(s schema) any {
	s = d.resolve(s)
	switch {
	case len(s.Enum) > 0:
		return s.Enum[0]
	case len(s.Examples) > 0:
		return s.Examples[0]
	case s.is("object"):
		o := object{}
		for _, name := range s.Required {
			o[name] = d.sample(s.Properties[name])
		}
		return o
	case s.is("array"):
		return []any{}
	case s.is("integer"), s.is("number"):
		return 1
	case s.is("boolean"):
		return false
	}
	return "x"
}

// T01: every member, parameter and path of the admin API, through its real listener: SQL is text, and nonsense is a 4xx.
func TestT01_AdminAPITakesSQLAsText(t *testing.T) {
	t.Parallel()
	h := startHostile(t)
	var doc openAPI
	raw := must(t)((&process{baseURL: h.control.admin}).get(t.Context(), adminToken, "/admin/v1/openapi.json"))
	require.Equal(t, http.StatusOK, raw.status)
	require.NoError(t, json.Unmarshal(raw.body, &doc))

	payloads := []any{
		"' OR pg_sleep(8)--", "'; SELECT pg_sleep(8); --", "1; DROP TABLE tollgate.virtual_keys; --", `\'; SELECT pg_sleep(8)--`, "$1", "%s%n",
		"${jndi:ldap://127.0.0.1/x}", "{{7*7}}", "'||(SELECT pg_sleep(8))||'",
	}
	others := []any{nil, -1, 1e300, true, []any{}, object{}, "", "\x00", strings.Repeat("x", 100_000), "\u202e", []any{[]any{}}}
	nowhere := map[string]string{}
	for _, name := range []string{"organizations", "teams", "keys", "users", "providers", "models", "limits", "memberships"} {
		status, page := h.admin(http.MethodGet, name+"?limit=1", nil)
		require.Equal(t, http.StatusOK, status, name)
		if items, _ := page["items"].([]any); len(items) > 0 {
			first, _ := items[0].(object)
			nowhere[name] = text(first["id"])
		}
	}
	var slowest time.Duration
	calls := 0
	send := func(what, method, path string, body any) {
		began := time.Now()
		var payload []byte
		if body != nil {
			var err error
			payload, err = json.Marshal(body)
			require.NoError(t, err)
		}
		req, err := http.NewRequestWithContext(t.Context(), method, h.control.admin+path, bytes.NewReader(payload))
		require.NoError(t, err, what)
		req.Header.Set("Authorization", "Bearer "+adminToken)
		if body != nil {
			req.Header.Set("Content-Type", "application/json")
		}
		a := must(t)(do(req))
		took := time.Since(began)
		slowest = max(slowest, took)
		calls++
		require.Less(t, a.status, 500, "%s: %s %s %s: %s", what, method, path, payload[:min(len(payload), 300)], a.body)
		require.Less(t, took, 5*time.Second, "%s: the payload was run", what)
		if a.status >= 400 {
			require.Equal(t, "application/problem+json", a.header.Get("Content-Type"), what)
			for _, leak := range []string{"SQLSTATE", "syntax error at", "pgx", "goroutine"} {
				require.NotContains(t, string(a.body), leak, what)
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
		address := "/admin/v1" + strings.ReplaceAll(path, "{id}", nowhere[segments[0]])
		for method, op := range doc.Paths[path] {
			method = strings.ToUpper(method)
			if method == http.MethodDelete || strings.HasSuffix(path, "/revoke") || strings.Contains(path, "ledger/check") {
				continue // they would take away what the others need; their ids are tried below
			}
			s := schema{}
			for _, content := range op.RequestBody.Content {
				s = doc.resolve(content.Schema)
			}
			for name, member := range s.Properties {
				base, _ := doc.sample(s).(object)
				if method == http.MethodPatch {
					base = object{}
				}
				tries := others
				if doc.resolve(member).is("string") {
					tries = slices.Concat(payloads, others)
				}
				for _, v := range tries {
					base[name] = v
					send(op.OperationID+" body."+name, method, address, base)
				}
			}
			for _, p := range op.Parameters {
				for _, v := range payloads {
					value := url.QueryEscape(fmt.Sprint(v))
					switch p.In {
					case "query":
						send(op.OperationID+" query."+p.Name, method, address+"?"+p.Name+"="+value, nil)
					case "path":
						send(op.OperationID+" path."+p.Name, method, strings.ReplaceAll("/admin/v1"+path, "{"+p.Name+"}", url.PathEscape(fmt.Sprint(v))), nil)
					}
				}
			}
		}
	}
	t.Logf("%d hostile requests to the admin API, the slowest took %s", calls, slowest.Round(time.Millisecond))
	require.Greater(t, calls, 1000)
	status, _ := h.admin(http.MethodGet, "keys?limit=1", nil)
	require.Equal(t, http.StatusOK, status, "the table is still there")
	report, err := h.admin(http.MethodGet, "ledger/check", nil)
	require.Equal(t, http.StatusOK, report, "%v", err)
}

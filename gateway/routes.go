package gateway

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/tollgate-gateway/tollgate/governance"
	"github.com/tollgate-gateway/tollgate/providers"
)

// route is one line of the table of what this gateway serves.
type route struct {
	name    string
	method  string
	path    string            // as echo writes it
	dialect providers.Dialect // of calls that are forwarded; "": nothing is
	serve   func(*call) error
}

// metered reports whether calls of the route reach a provider, which none does without governance.
func (rt *route) metered() bool { return rt.dialect != "" }

// routes is the table. A route with a dialect is served by serveModel alone, the one way to a provider.
func routes() []*route {
	model := (*call).serveModel
	return []*route{
		{governance.RouteChat, http.MethodPost, "/v1/chat/completions", providers.OpenAIChat, model},
		{governance.RouteCompletions, http.MethodPost, "/v1/completions", providers.OpenAICompletions, model},
		{governance.RouteEmbeddings, http.MethodPost, "/v1/embeddings", providers.OpenAIEmbeddings, model},
		{governance.RouteResponses, http.MethodPost, "/v1/responses", providers.OpenAIResponses, model},
		{governance.RouteModerations, http.MethodPost, "/v1/moderations", providers.OpenAIModerations, model},
		{governance.RouteMessages, http.MethodPost, "/v1/messages", providers.AnthropicMessages, model},
		{governance.RouteCountTokens, http.MethodPost, "/v1/messages/count_tokens", providers.AnthropicCountTokens, model},
		{governance.RouteImages, http.MethodPost, "/v1/images/generations", providers.OpenAIImages, model},
		{governance.RouteImageEdits, http.MethodPost, "/v1/images/edits", providers.OpenAIImageEdits, model},
		{governance.RouteImageVariations, http.MethodPost, "/v1/images/variations", providers.OpenAIImageVariations, model},
		{governance.RouteSpeech, http.MethodPost, "/v1/audio/speech", providers.OpenAISpeech, model},
		{governance.RouteTranscriptions, http.MethodPost, "/v1/audio/transcriptions", providers.OpenAITranscriptions, model},
		{governance.RouteTranslations, http.MethodPost, "/v1/audio/translations", providers.OpenAITranslations, model},
		{governance.RouteRerank, http.MethodPost, "/v1/rerank", providers.CohereRerank, model},
		{governance.RouteRerank, http.MethodPost, "/v2/rerank", providers.CohereRerank, model}, // what Cohere's SDK calls
		{"files.upload", http.MethodPost, "/v1/files", "", (*call).serveFileUpload},
		{"files", http.MethodGet, "/v1/files", "", (*call).serveFiles},
		{"files.one", http.MethodGet, "/v1/files/:id", "", (*call).serveFile},
		{"files.content", http.MethodGet, "/v1/files/:id/content", "", (*call).serveFileContent},
		{"files.delete", http.MethodDelete, "/v1/files/:id", "", (*call).serveFileDelete},
		{"batches.create", http.MethodPost, "/v1/batches", "", (*call).serveBatchCreate},
		{governance.RouteBatches, http.MethodGet, "/v1/batches", "", (*call).serveBatches},
		{"batches.one", http.MethodGet, "/v1/batches/:id", "", (*call).serveBatch},
		{"batches.cancel", http.MethodPost, "/v1/batches/:id/cancel", "", (*call).serveBatchCancel},
		{"models", http.MethodGet, "/v1/models", "", (*call).serveModels},
		{"models.one", http.MethodGet, modelPath + "*", "", (*call).serveModelInfo},
		{"key", http.MethodGet, "/v1/key", "", (*call).serveKey},
		{"usage", http.MethodGet, "/v1/usage", "", (*call).serveUsage},
		{"receipts.one", http.MethodGet, "/v1/receipts/:id", "", (*call).serveReceipt},
		{"estimate", http.MethodPost, "/v1/estimate", "", (*call).serveEstimate},
	}
}

// modelPath is followed by a model's name, which may hold slashes and colons, raw or escaped (F109).
const modelPath = "/v1/models/"

// shared reports whether both dialects have the route's path.
func (rt *route) shared() bool {
	for _, name := range []string{"models", "files", governance.RouteBatches} {
		if rest, ok := strings.CutPrefix(rt.name, name); ok && (rest == "" || rest[0] == '.') {
			return true
		}
	}
	return false
}

// mounts are the prefixes under which SDKs look for their provider's paths.
var mounts = []string{"", "/openai", "/anthropic"}

// paths lists where a route is mounted. What SDKs call is also served without /v1, since users give base URLs with and
// without it.
func (rt *route) paths() []string {
	var all []string
	for _, prefix := range mounts {
		all = append(all, prefix+rt.path)
	}
	if rt.metered() || rt.shared() {
		all = append(all, strings.TrimPrefix(rt.path, "/v1"))
	}
	return all
}

// mount builds the router. Everything else about HTTP is in this package's own hands: echo only finds the route.
func (g *Gateway) mount() *echo.Echo {
	e := echo.New()
	e.HTTPErrorHandler = func(err error, ec echo.Context) {
		c := g.newCall(nil, ec.Response().Writer, ec.Request())
		defer c.hangUp()
		defer c.finish()
		c.err = notServed(err)
	}
	root := func(ec echo.Context) error {
		ec.Response().WriteHeader(http.StatusOK)
		return nil
	}
	e.GET("/", root)
	e.HEAD("/", root)
	for _, rt := range routes() {
		for _, path := range rt.paths() {
			e.Add(rt.method, path, func(ec echo.Context) error {
				g.serve(rt, ec.Param("id"), ec.Response().Writer, ec.Request())
				return nil
			})
		}
	}
	return e
}

func notServed(err error) error {
	he, _ := errors.AsType[*echo.HTTPError](err)
	if he != nil && he.Code == http.StatusMethodNotAllowed {
		return fault(governance.CodeMethodNotAllowed, "This path does not take this method.")
	}
	if he != nil && he.Code == http.StatusNotFound {
		return fault(governance.CodeNotFound, "This path is not served here.")
	}
	return err
}

// enter is the first thing that sees a request.
func (g *Gateway) enter(w http.ResponseWriter, r *http.Request) {
	err := admissible(r)
	if err == nil {
		if why := g.begun(); why != nil {
			err = orUnavailable(why)
		}
	}
	if err != nil {
		c := g.newCall(nil, w, r)
		defer c.hangUp()
		defer c.finish()
		c.err = err
		return
	}
	g.handler.ServeHTTP(w, r)
}

// admissible refuses requests that two servers could understand differently (T10, T18), and upgrades.
func admissible(r *http.Request) error {
	if r.Header.Get("Upgrade") != "" {
		return fault(governance.CodeUpgradeUnsupported, "Upgraded connections are not supported. Use HTTP requests.")
	}
	if len(r.Header["Authorization"]) > 1 {
		return invalid("", "The header Authorization is given more than once.")
	}
	if !strings.HasPrefix(r.RequestURI, "/") {
		return invalid("", "The request must name a path.")
	}
	path, _, _ := strings.Cut(r.RequestURI, "?")
	if strings.ContainsAny(path, "#;\\\x00") {
		return invalid("", "The path contains a character that is not allowed.")
	}
	lower := strings.ToLower(path)
	if strings.Contains(lower, "%5c") || strings.Contains(lower, "%00") || strings.Contains(lower, "%3b") {
		return invalid("", "The path contains an escaped character that is not allowed.")
	}
	for segment := range strings.SplitSeq(path, "/") {
		if plain, err := url.PathUnescape(segment); err != nil || plain == "." || plain == ".." || strings.HasPrefix(plain, "../") {
			return invalid("", "The path contains a segment that is not allowed.")
		}
	}
	if name, ok := modelName(path); ok {
		if plain, err := url.PathUnescape(name); err != nil || strings.Contains("/"+plain+"/", "/../") {
			return invalid("", "The path contains a segment that is not allowed.")
		}
		return nil // a model's name may hold slashes of any kind
	}
	if strings.Contains(path, "//") || strings.Contains(lower, "%2f") {
		return invalid("", "The path contains an empty segment or an escaped slash.")
	}
	return nil
}

// modelName returns what an escaped path has behind that of the models, wherever that is mounted.
func modelName(path string) (escaped string, ok bool) {
	for _, prefix := range mounts {
		if name, ok := strings.CutPrefix(path, prefix+modelPath); ok {
			return name, true
		}
	}
	return strings.CutPrefix(path, strings.TrimPrefix(modelPath, "/v1"))
}

// speaksAnthropic follows ruling 41: errors and shared paths are Anthropic's under its mount, on its own paths, and with
// its version header on paths that both dialects have.
func speaksAnthropic(rt *route, r *http.Request) bool {
	path := r.URL.Path
	if strings.HasPrefix(path, "/anthropic/") || rt != nil && isAnthropic(rt.dialect) {
		return true
	}
	if rt == nil && strings.HasPrefix(path, "/v1/messages") {
		return true
	}
	return (rt == nil || rt.shared()) && r.Header.Get("Anthropic-Version") != ""
}

// RouteInfo describes a route for people and for tests that must see them all.
type RouteInfo struct {
	Name, Method, Path string
	Metered            bool // its calls reach a provider
}

// Routes lists everything that is served under each mount, besides / itself.
func (g *Gateway) Routes() []RouteInfo {
	var list []RouteInfo
	for _, rt := range routes() {
		list = append(list, RouteInfo{rt.name, rt.method, rt.path, rt.metered()})
	}
	return list
}

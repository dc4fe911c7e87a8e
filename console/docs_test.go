package console

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/governance"
)

// The examples of the documentation work as they stand.
func TestDocs_EveryExampleWorks(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/api/admin.md")
	require.NoError(t, err)
	e := newEnv(t)
	server := httptest.NewServer(e.handler)
	t.Cleanup(server.Close)
	variables := map[string]string{"TOLLGATE_ADMIN_URL": server.URL, "TOLLGATE_ADMIN_TOKEN": testToken}
	named := map[string]string{"org": "ORG", "team": "TEAM", "key": "KEY", "prov": "PROVIDER", "lim": "LIMIT", "guard": "GUARDRAIL"}

	examples := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	require.Greater(t, len(examples), 15)
	for _, example := range examples {
		request := curl(t, example[1], variables)
		answer, err := server.Client().Do(request)
		require.NoError(t, err)
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Less(t, answer.StatusCode, 300, "%s\n%s", example[1], text)
		if id := regexp.MustCompile(`^\{"id":"((\w+)_\w{12})"`).FindStringSubmatch(string(text)); id != nil {
			variables[named[id[2]]] = id[1] // the next examples are about it
		}
	}
}

// curl reads a command line of curl as a shell would.
func curl(tb testing.TB, line string, variables map[string]string) *http.Request {
	tb.Helper()
	words := split(line, variables)
	require.Equal(tb, "curl", words[0])
	method, url, body := "", "", ""
	header := http.Header{}
	for i := 1; i < len(words); i++ {
		switch words[i] {
		case "-X":
			i++
			method = words[i]
		case "-d":
			i++
			body = words[i]
		case "-H":
			i++
			name, value, _ := strings.Cut(words[i], ": ")
			header.Set(name, value)
		default:
			url = words[i]
		}
	}
	if method == "" {
		method = http.MethodGet
		if body != "" {
			method = http.MethodPost
		}
	}
	request, err := http.NewRequestWithContext(tb.Context(), method, url, strings.NewReader(body))
	require.NoError(tb, err)
	request.Header = header
	return request
}

// split separates words, with the quotes and variables of a shell.
func split(line string, variables map[string]string) []string {
	line = strings.ReplaceAll(line, "\\\n", " ")
	variable := regexp.MustCompile(`^\$(\w+)`)
	var words []string
	var word strings.Builder
	inWord, quote := false, byte(0)
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case quote != '\'' && c == '$':
			m := variable.FindStringSubmatch(line[i:])
			word.WriteString(variables[m[1]])
			i += len(m[0]) - 1
			inWord = true
		case quote == 0 && (c == '\'' || c == '"'):
			quote, inWord = c, true
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == ' ' || c == '\n'):
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words
}

// Every code of a problem is explained, and no other.
func TestDocs_EveryProblemIsExplained(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/api/admin.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(page), "## Codes of problems")
	require.True(t, found)
	explained := make(map[string]bool)
	for _, row := range regexp.MustCompile("(?m)^\\| `.*? \\|").FindAllString(table, -1) {
		for _, code := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(row, -1) {
			explained[code[1]] = true
		}
	}
	used := map[string]bool{
		codeUnauthorized: true, codeForbidden: true, codeTooManyFailures: true, codeExists: true, codeConflict: true,
		codePreconditionFailed: true, codeUnsupportedMedia: true, codeRequestTimeout: true,
		string(governance.CodeInvalidRequest): true, string(governance.CodeNotFound): true, string(governance.CodeMethodNotAllowed): true,
		string(governance.CodePayloadTooLarge): true, string(governance.CodeUnsupportedEncoding): true, string(governance.CodeInternal): true,
		string(governance.CodeDataStoreUnavailable): true,
	}
	require.Equal(t, used, explained)
}

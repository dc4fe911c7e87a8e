package gateway_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// Users give base URLs with and without /v1; both reach the same governed route.
func TestRoutes_WithAndWithoutV1(t *testing.T) {
	t.Parallel()
	b := start(t)
	const body = chatBody
	for _, path := range []string{"/v1/chat/completions", "/chat/completions", "/openai/v1/chat/completions", "/anthropic/v1/chat/completions"} {
		require.Equal(t, http.StatusOK, b.post(path, body).StatusCode, path)
	}
	for _, path := range []string{"/v1/models", "/models", "/v1/models/m", "/models/m"} {
		require.Equal(t, http.StatusOK, b.get(path).StatusCode, path)
	}
	for _, path := range []string{"/key", "/usage", "/v2/models", "/v1/v1/models", "/admin/v1/keys", "/console/"} {
		require.Equal(t, http.StatusNotFound, b.get(path).StatusCode, path)
	}
	b.settled(4)
}

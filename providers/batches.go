package providers

import (
	"context"
	"io"
	"net/http"
)

// Resources of a provider's account that are addressed as OpenAI's are. They are no dialects of models.
const (
	OpenAIFiles   Dialect = "openai/files"
	OpenAIBatches Dialect = "openai/batches"
)

// Batcher is a Provider whose accounts keep files and run batches of requests, by the paths and in the form of OpenAI's Files
// and Batch APIs. The requests of a batch are of any dialect that it speaks.
type Batcher interface {
	Provider
	// Batches reports whether accounts of the kind do so: providers of one code may differ in it.
	Batches() bool
	// NewResourceRequest asks for a resource: resource is OpenAIFiles or OpenAIBatches, and path leads on from it by whole
	// segments, as they are named. A body is of contentType; a nil one sends none. The credential is the upstream's; none of
	// the client's headers go on.
	NewResourceRequest(
		ctx context.Context, up Upstream, method string, resource Dialect, path []string, contentType string, body io.Reader,
	) (*http.Request, error)
}

package concurrency_test

import (
	"testing"

	"github.com/tollgate-gateway/tollgate/plugins/concurrency"
	"github.com/tollgate-gateway/tollgate/plugins/plugintest"
)

func TestContract(t *testing.T) {
	t.Parallel()
	plugintest.Run(t, concurrency.Module(), "")
}

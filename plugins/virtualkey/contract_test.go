package virtualkey_test

import (
	"testing"

	"github.com/tollgate-gateway/tollgate/plugins/plugintest"
	"github.com/tollgate-gateway/tollgate/plugins/virtualkey"
)

func TestContract(t *testing.T) {
	t.Parallel()
	plugintest.Run(t, virtualkey.Module(), "max_age: 1s\nmax_entries: 100")
}
